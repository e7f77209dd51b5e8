# Handlers, and the sandbox that follows from them.
{
  words,
  lib,
  pkgs,
  ...
}:
let
  inherit (words)
    machine
    unitOf
    lineOf
    settingsOf
    case
    equal
    refused
    mistyped
    exec
    sql
    ;
in
[
  (refused "a program without a name" (machine {
    handlers.work.type = "exec";
  }) ''type = "exec" needs command'')
  (refused "a program with an empty name" (machine {
    handlers.work = {
      type = "exec";
      command = [ ];
    };
  }) "needs command")
  (refused "SQL without a statement" (machine { handlers.work.type = "sql"; }) "needs statement")
  (refused "a request without a URL" (machine { handlers.work.type = "http"; }) "needs url")
  (mistyped "a handler of no type" { handlers.work.command = [ "true" ]; })
  (mistyped "a handler of another type" { handlers.work.type = "shell"; })
  (mistyped "a command line in place of a list" {
    handlers.work = {
      type = "exec";
      command = "echo hello";
    };
  })
  (equal "unset keys are absent" (settingsOf (machine sql)).handler.account sql.handlers.account)
  (equal "programs get control groups of their own" (lineOf (machine exec) "Delegate") "yes")
  (equal "programs may make code at run time" (
    (unitOf (machine exec)).serviceConfig ? MemoryDenyWriteExecute
  ) false)
  (equal "SQL may not" (lineOf (machine sql) "MemoryDenyWriteExecute") true)
  (equal "a handler in the settings counts as well" (lineOf (machine {
    settings.handler.work = exec.handlers.work;
  }) "Delegate") "yes")
  (equal "mirrors elsewhere are made, and may be written to"
    (
      let
        config = machine {
          handlers.commits = {
            type = "git-analysis";
            mirrors = "/srv/mirrors";
          };
          serviceOverrides.ReadWritePaths = [ "/srv/media" ];
        };
      in
      [
        (lineOf config "ReadWritePaths")
        (unitOf config).unitConfig.RequiresMountsFor
        config.systemd.tmpfiles.settings.queue-worker
      ]
    )
    [
      [
        "/srv/media"
        "/srv/mirrors"
      ]
      [ "/srv/mirrors" ]
      {
        "/srv/mirrors".d = {
          user = "queue-worker";
          group = "queue-worker";
          mode = ":0700";
        };
      }
    ]
  )
  (equal "mirrors in the folder of the instance need nothing" (
    (unitOf (machine {
      handlers.commits = {
        type = "git-analysis";
        mirrors = "/var/lib/queue-worker/jobs/mirrors";
      };
    })).serviceConfig ? ReadWritePaths
  ) false)
  (case "extra packages are on the PATH" (lib.hasPrefix "${pkgs.git}/bin:"
    (unitOf (machine (exec // { extraPackages = [ pkgs.git ]; }))).environment.PATH
  ) "they are not")
]
