# The unit of one instance, as `systemd.services.queue-worker-<name>`.
{
  lib,
  pkgs,
  cfg,
  name,
  instance,
  configFile,
  redisGroup,
}:
let
  program = lib.getExe cfg.package;
  path = "/etc/queue-worker/${name}.toml";
  execHandlers = lib.filterAttrs (_: handler: handler.type or "" == "exec") (
    instance.settings.handler or { }
  );
  background = instance.onSwitch == "background";

  # What a reload cannot apply (src/config/reload.rs): a change of it restarts the worker.
  fixed =
    removeAttrs instance.settings [
      "drain"
      "handler"
    ]
    // {
      queue = map (queue: removeAttrs queue [ "concurrency" ]) instance.settings.queue;
      log = removeAttrs (instance.settings.log or { }) [ "level" ];
    };

  stores =
    lib.optional instance.redis.createLocally "redis-queue-worker.service"
    ++ lib.optional instance.database.createLocally "postgresql.service";

  prepared = lib.optionals instance.database.createLocally [
    "postgresql-setup.service"
    "postgresql.target"
  ];
in
{
  description = "Queue worker ${name}";
  documentation = [ "man:queue-worker(1)" ];
  wantedBy = [ "multi-user.target" ];
  wants = [ "network-online.target" ] ++ prepared;
  after = [ "network-online.target" ] ++ stores ++ prepared;
  # A stop of the store reaches the worker first, which drains while the store is still there.
  requires = stores;

  # A store that is away for an hour must not leave the worker failed for good.
  unitConfig.StartLimitIntervalSec = 0;

  reloadTriggers = lib.mkIf (instance.onSwitch != "ignore") [ "${configFile}" ];
  restartTriggers = lib.mkIf (instance.onSwitch == "drain") [ (builtins.toJSON fixed) ];
  reloadIfChanged = background;
  restartIfChanged = instance.onSwitch != "ignore";

  path = instance.extraPackages;
  environment.HOME = "/var/lib/queue-worker/${name}";

  serviceConfig = lib.mkMerge [
    (
      {
        Type = "notify";
        NotifyAccess = "main";
        User = instance.user;
        Group = instance.group;
        ExecStart = "${program} run --config ${path}";
        # A file that the program refuses leaves the running worker alone.
        ExecReload = [
          "${program} check-config --config ${path}"
          "${pkgs.coreutils}/bin/kill -${if background then "USR2" else "HUP"} $MAINPID"
        ];

        KillSignal = "SIGTERM";
        KillMode = "mixed";
        SendSIGKILL = true;
        TimeoutStopSec = instance.stopTimeout;
        TimeoutStartSec = lib.mkDefault 300;
        WatchdogSec = lib.mkDefault 30;

        Restart = "always";
        RestartPreventExitStatus = 78;
        RestartSec = lib.mkDefault 1;
        RestartSteps = lib.mkDefault 5;
        # Each end of a background drain counts as a restart, and should not be answered slowly.
        RestartMaxDelaySec = lib.mkDefault (if background then 5 else 30);
        OOMPolicy = lib.mkDefault "continue";

        StateDirectory = "queue-worker/${name}";
        StateDirectoryMode = "0700";
        WorkingDirectory = "/var/lib/queue-worker/${name}";
        SyslogIdentifier = "queue-worker";
        LogRateLimitIntervalSec = lib.mkDefault 30;
        LogRateLimitBurst = lib.mkDefault 50000;
        LimitNOFILE = lib.mkDefault 65536;
      }
      // lib.optionalAttrs instance.database.migrate {
        # Its failure is left to the main process, which says what is wrong with the schema or the
        # file: RestartPreventExitStatus heeds no other, and a stop that cuts this one short would
        # leave the unit failed.
        ExecStartPre = [ "-${program} migrate --config ${path}" ];
      }
      // lib.optionalAttrs (instance.environmentFile != null) {
        EnvironmentFile = instance.environmentFile;
      }
      // lib.optionalAttrs instance.redis.createLocally {
        SupplementaryGroups = [ redisGroup ];
      }
    )
    (import ./hardening.nix {
      inherit lib;
      exec = execHandlers != { };
    })
    (lib.mapAttrs (_: lib.mkOverride 90) instance.serviceOverrides)
  ];
}
