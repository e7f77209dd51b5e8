# The units of one instance, as `systemd.services`: the worker, and what brings the schema up to date
# before it.
#
# The migration is a unit of its own, since what fails in ExecStartPre= is tried again even if it is the
# configuration (RestartPreventExitStatus= looks at the main process only), and keeps a worker down that
# would rather wait for its stores alive. Wanted and ordered, but not required: while Postgres is away,
# the worker starts and waits, and the migration is tried until it succeeds.
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
  # Those that start programs.
  execHandlers = lib.filterAttrs (
    _: handler:
    builtins.elem (handler.type or "") [
      "exec"
      "git-analysis"
    ]
  ) (instance.settings.handler or { });
  mirrors = import ./mirrors.nix { inherit lib; } name instance;
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

  migration = lib.optional instance.database.migrate "queue-worker-${name}-migrate.service";

  hardening = exec: import ./hardening.nix { inherit lib exec; };
  overrides = lib.mapAttrs (_: lib.mkOverride 90);

  # What both have in common.
  unit = {
    documentation = [ "man:queue-worker(1)" ];
    wants = [ "network-online.target" ] ++ prepared;
    after = [ "network-online.target" ] ++ stores ++ prepared;
    # A stop of the store reaches the worker first, which drains while the store is still there.
    requires = stores;
    # A store that is away for an hour must not leave the unit failed for good.
    unitConfig.StartLimitIntervalSec = 0;
  };

  service = {
    User = instance.user;
    Group = instance.group;
    RestartPreventExitStatus = 78;
    RestartSec = lib.mkDefault 1;
    RestartSteps = lib.mkDefault 5;
    SyslogIdentifier = "queue-worker";
  }
  // lib.optionalAttrs (instance.environmentFile != null) {
    EnvironmentFile = instance.environmentFile;
  }
  // lib.optionalAttrs instance.redis.createLocally {
    SupplementaryGroups = [ redisGroup ];
  };

  worker = unit // {
    description = "Queue worker ${name}";
    wantedBy = [ "multi-user.target" ];
    wants = unit.wants ++ migration;
    after = unit.after ++ migration;

    reloadTriggers = lib.mkIf (instance.onSwitch != "ignore") [ "${configFile}" ];
    restartTriggers = lib.mkIf (instance.onSwitch == "drain") [ (builtins.toJSON fixed) ];
    reloadIfChanged = background;
    restartIfChanged = instance.onSwitch != "ignore";

    # Else they would be made below the mount point.
    unitConfig = unit.unitConfig // lib.optionalAttrs (mirrors != [ ]) { RequiresMountsFor = mirrors; };

    path = instance.extraPackages;
    environment.HOME = "/var/lib/queue-worker/${name}";

    serviceConfig = lib.mkMerge [
      service
      {
        Type = "notify";
        NotifyAccess = "main";
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
        WatchdogSec = lib.mkDefault 30;

        Restart = "always";
        # Each end of a background drain counts as a restart, and should not be answered slowly.
        RestartMaxDelaySec = lib.mkDefault (if background then 5 else 30);
        OOMPolicy = lib.mkDefault "continue";

        StateDirectory = "queue-worker/${name}";
        StateDirectoryMode = "0700";
        WorkingDirectory = "/var/lib/queue-worker/${name}";
        LogRateLimitIntervalSec = lib.mkDefault 30;
        LogRateLimitBurst = lib.mkDefault 50000;
        LimitNOFILE = lib.mkDefault 65536;
      }
      (hardening (execHandlers != { }))
      (overrides instance.serviceOverrides)
      # As much as those, so that they come together.
      (overrides (lib.optionalAttrs (mirrors != [ ]) { ReadWritePaths = mirrors; }))
    ];
  };

  migrate = unit // {
    description = "Schema of queue worker ${name}";
    # Run by each start of the worker and by nothing else, and not tried on when the worker is stopped.
    restartIfChanged = false;
    partOf = [ "queue-worker-${name}.service" ];
    # Reading the configuration includes a look at the handlers' programs.
    path = instance.extraPackages;

    serviceConfig = lib.mkMerge [
      service
      {
        Type = "oneshot";
        ExecStart = "${program} migrate --config ${path}";
        Restart = "on-failure";
        # A stop in the middle is none of its failures; what it did not commit is rolled back.
        SuccessExitStatus = "SIGTERM";
        RestartMaxDelaySec = lib.mkDefault 30;
      }
      (hardening false)
    ];
  };
in
{
  "queue-worker-${name}" = worker;
}
// lib.optionalAttrs instance.database.migrate {
  "queue-worker-${name}-migrate" = migrate;
}
