# What an instance is made of, and what every one has.
{
  words,
  lib,
  pkgs,
  evaluate,
  ...
}:
let
  inherit (words)
    machine
    worker
    lineOf
    case
    equal
    refused
    accepted
    warned
    mistyped
    exec
    ;

  several =
    (evaluate [
      ../../machine.nix
      { services.queue-worker.hostShutdownTimeout = 60; }
    ]).config;

  undescribed = lib.filter (
    option:
    lib.hasPrefix "services.queue-worker" option.name && !option.internal && !(option ? description)
  ) (lib.optionAttrSetToDocList (evaluate { }).options);
in
[
  (accepted "a worker with nothing but its defaults" (machine { }))
  (accepted "a worker with programs" (machine exec))
  (accepted "several workers" several)
  (equal "several workers have a unit each" (lib.attrNames several.systemd.services) [
    "postgresql"
    "queue-worker-accounts"
    "queue-worker-accounts-migrate"
    "queue-worker-hooks"
    "queue-worker-hooks-migrate"
    "queue-worker-mail"
    "queue-worker-mail-migrate"
    "redis-queue-worker"
  ])
  (equal "several workers have a configuration each" (lib.attrNames several.environment.etc) [
    "queue-worker/accounts.toml"
    "queue-worker/hooks.toml"
    "queue-worker/mail.toml"
  ])
  (equal "nothing is made unless enabled"
    (evaluate {
      services.queue-worker.instances.jobs = exec;
    }).config.systemd.services
    { }
  )
  (equal "an instance can be switched off" (machine (exec // { enable = false; })).systemd.services
    { }
  )
  (warned "a machine without a worker" (evaluate { services.queue-worker.enable = true; }).config
    "without an instance"
  )
  (equal "every option is described" (map (option: option.name) undescribed) [ ])

  (equal "one line of the unit can be overridden" (lineOf (machine {
    serviceOverrides.ProtectHome = false;
  }) "ProtectHome") false)
  (equal "also one that is no default" (lineOf (machine {
    serviceOverrides.Restart = "on-failure";
  }) "Restart") "on-failure")
  (equal "another user is not created" (lib.attrNames
    (machine { user = "somebody"; }).users.users
  ) [ ])
  (equal "the user is created" (lib.attrNames (machine { }).users.users) [ "queue-worker" ])
  (refused "a name that is no name of a unit"
    (evaluate {
      services.queue-worker = {
        enable = true;
        instances."a b" = { };
      };
    }).config
    "write it of letters"
  )
  (mistyped "seconds with a unit" { stopTimeout = "45s"; })
  (mistyped "a stop limit that leaves no drain" { stopTimeout = 5; })
  (mistyped "an option that there is not" { concurrency = 3; })
  (case "the configuration is checked by the program" (lib.hasInfix "check-config"
    (machine { }).environment.etc."queue-worker/jobs.toml".source.script
  ) "it is not")
  (case "unless it is not to be" (
    !(
      (evaluate {
        services.queue-worker = worker { } // {
          checkConfig = false;
        };
      }).config.environment.etc."queue-worker/jobs.toml".source
        ? script
    )
  ) "it is")

  (
    let
      command =
        lib.findFirst (package: package.name == "queue-worker-jobs") null
          (machine (
            exec
            // {
              redis.createLocally = true;
              environmentFile = "/run/secrets/env file";
              credentials.token = "/run/secrets/token";
              extraPackages = [ pkgs.git ];
            }
          )).environment.systemPackages;
      has = text: lib.hasInfix text command.text;
    in
    equal "the command line has what the unit has"
      (map has [
        "--property='User=queue-worker' "
        "--property='Environment=PATH=${pkgs.git}/bin:"
        "--property='SupplementaryGroups=redis-queue-worker' "
        "--property='EnvironmentFile=/run/secrets/env file' "
        ''unit="run-queue-worker-jobs@$$.service"''
        '' --unit="$unit" --expand-environment=no ''
      ])
      [
        true
        true
        true
        true
        true
        true
      ]
  )
]
