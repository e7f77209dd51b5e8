# What the module has to accept, refuse and make, case by case: `{ name, ok, found }`.
{
  lib,
  pkgs,
  evaluate,
  machines,
  quickStart,
  guides,
  flake,
}:
let
  # A machine with one instance, `jobs`.
  machine = instance: (evaluate { services.queue-worker = worker instance; }).config;
  worker = instance: {
    enable = true;
    instances.jobs = instance;
  };
  container =
    instance:
    (evaluate {
      boot.isContainer = true;
      services.queue-worker = worker instance;
    }).config;

  unitOf = config: config.systemd.services.queue-worker-jobs;
  lineOf = config: key: (unitOf config).serviceConfig.${key};
  settingsOf = config: config.services.queue-worker.instances.jobs.settings;

  failures = config: map (one: one.message) (lib.filter (one: !one.assertion) config.assertions);

  case = name: ok: found: {
    inherit name ok;
    found = if lib.isString found then found else builtins.toJSON found;
  };

  equal =
    name: found: expected:
    case name (found == expected) found;

  # Exactly one assertion fails, and its message says this.
  refused =
    name: config: text:
    let
      messages = failures config;
    in
    case name (lib.length messages == 1 && lib.hasInfix text (lib.head messages)) messages;

  accepted =
    name: config:
    let
      messages = failures config ++ config.warnings;
    in
    case name (messages == [ ]) messages;

  warned =
    name: config: text:
    case name (
      failures config == [ ]
      && lib.length config.warnings == 1
      && lib.hasInfix text (lib.head config.warnings)
    ) config.warnings;

  # The evaluation itself fails: a wrong type.
  mistyped =
    name: instance:
    let
      tried = builtins.tryEval (
        builtins.deepSeq [
          (settingsOf (machine instance))
          (unitOf (machine instance)).text
          (machine instance).services.queue-worker.instances.jobs
        ] true
      );
    in
    case name (!tried.success) "it was accepted";

  exec.handlers.work = {
    type = "exec";
    command = [ "${pkgs.hello}/bin/hello" ];
  };
  sql.handlers.account = {
    type = "sql";
    statement = "SELECT 1";
  };

  inStore = "${builtins.storeDir}/00000000000000000000000000000000-secret";

  several =
    (evaluate [
      ../machine.nix
      { services.queue-worker.hostShutdownTimeout = 60; }
    ]).config;

  host =
    configuration:
    (evaluate {
      virtualisation.incus.enable = true;
      services.queue-worker-incus-host = {
        enable = true;
      }
      // configuration;
    }).config;

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
    "queue-worker-accounts"
    "queue-worker-accounts-migrate"
    "queue-worker-hooks"
    "queue-worker-hooks-migrate"
    "queue-worker-mail"
    "queue-worker-mail-migrate"
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

  # The limits of a stop.
  (equal "the drain leaves time before systemd's limit" (settingsOf (machine { })).drain {
    timeout = "33s";
    kill_after = "5s";
    margin = "5s";
    stop_timeout = "45s";
  })
  (equal "a container stops before its host kills it" (lineOf (container { }) "TimeoutStopSec") 28)
  (accepted "a container with its defaults" (container { }))
  (equal "a host that waits longer leaves the default alone" (lineOf
    (evaluate {
      boot.isContainer = true;
      services.queue-worker = worker { } // {
        hostShutdownTimeout = 120;
      };
    }).config
    "TimeoutStopSec"
  ) 45)
  (warned "a container that needs longer than its host waits" (container {
    stopTimeout = 60;
  }) "boot.host_shutdown_timeout")
  (warned "a container whose drain may be extended past its host's patience" (container {
    settings.drain.extend_at_most = "10s";
  }) "a stop may take 38s")
  (accepted "a container that needs 60 s on a host that waits 90"
    (evaluate {
      boot.isContainer = true;
      services.queue-worker = worker { stopTimeout = 60; } // {
        hostShutdownTimeout = 90;
      };
    }).config
  )
  (warned "a container whose drain leaves too little" (container {
    stopTimeout = 29;
    settings.drain = {
      timeout = "26s";
      kill_after = "0s";
      margin = "2s";
    };
  }) "in a container")
  (refused "a drain that does not fit" (machine {
    settings.drain.timeout = "40s";
  }) "settings.drain needs 50s")
  (refused "a drain that fits to the second" (machine {
    settings.drain.timeout = "35s";
  }) "kills the worker after")
  (accepted "a drain that fits" (machine {
    settings.drain.timeout = "34500ms";
  }))
  (refused "a limit set past the module" (machine {
    serviceOverrides.TimeoutStopSec = 300;
  }) "set stopTimeout")
  (refused "a limit set past the module, in the settings" (machine {
    settings.drain.stop_timeout = "90s";
  }) "set stopTimeout")
  (equal "every stop limit leaves a drain" (lib.filter (
    seconds:
    let
      parts = import ../../module/drain.nix { inherit lib; } seconds;
      sum = parts.timeout + parts.killAfter + parts.margin;
    in
    !(parts.timeout >= seconds / 2 && parts.margin >= 2 && sum < seconds)
  ) (lib.range 10 600)) [ ])

  # Leases.
  (refused "a lease shorter than three heartbeats" (machine {
    settings.lease.ttl = "4s";
  }) "shorter than three heartbeats")
  (refused "a heartbeat too slow for the lease" (machine {
    settings.lease.heartbeat = "2s";
  }) "Raise settings.lease.ttl")
  (accepted "a longer lease" (machine {
    settings.lease = {
      ttl = "30s";
      heartbeat = "9s";
      min_idle = "30s";
    };
  }))

  # Secrets.
  (refused "a password file in the store" (machine {
    settings.redis.password_file = inStore;
  }) "settings.redis.password_file would put a secret into the Nix store")
  (refused "a password file as a path" (machine {
    settings.postgres.password_file = ./cases.nix;
  }) "settings.postgres.password_file")
  (refused "a bearer token in the store" (machine {
    handlers.notify = {
      type = "http";
      url = "https://example.org";
      bearer_file = inStore;
    };
  }) "settings.handler.notify.bearer_file")
  (refused "a header's secret in the store" (machine {
    handlers.notify = {
      type = "http";
      url = "https://example.org";
      header_files.X-Key = inStore;
    };
  }) "settings.handler.notify.header_files")
  (refused "a password in the settings" (machine {
    settings.redis.password = "hunter2";
  }) "settings.redis.password")
  (refused "a password in a URL" (machine {
    settings.postgres.url = "postgres://queue-worker:hunter2@db/queue-worker";
  }) "settings.postgres.url")
  (refused "a password in the URL of a lock node" (machine {
    settings.lease.nodes = [
      "redis://a/0"
      "redis://:hunter2@b/0"
      "redis://c/0"
    ];
  }) "settings.lease.nodes")
  (accepted "a port and a user in a URL are no password" (machine {
    settings.postgres.url = "postgres://queue-worker@db:5433/queue-worker";
  }))
  (mistyped "an environment file in the store" { environmentFile = inStore; })
  (mistyped "a credential in the store" { credentials.redis = inStore; })
  (equal "an environment file" (lineOf (machine {
    environmentFile = "/run/secrets/env";
  }) "EnvironmentFile") "/run/secrets/env")
  (equal "credentials come after what LXC says"
    (map (package: package.path)
      (machine {
        credentials.redis = "/run/secrets/redis";
      }).systemd.packages
    )
    [
      "etc/systemd/system/queue-worker-jobs.service.d/zzzz-queue-worker.conf"
      "etc/systemd/system/queue-worker-jobs-migrate.service.d/zzzz-queue-worker.conf"
    ]
  )

  # Handlers.
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
  (case "extra packages are on the PATH" (lib.hasPrefix "${pkgs.git}/bin:"
    (unitOf (machine (exec // { extraPackages = [ pkgs.git ]; }))).environment.PATH
  ) "they are not")

  # Switches.
  (equal "by default a reload reads the configuration again" (lib.last (
    lineOf (machine { }) "ExecReload"
  )) "${pkgs.coreutils}/bin/kill -HUP $MAINPID")
  (equal "in the background it drains" (lib.last (
    lineOf (machine { onSwitch = "background"; }) "ExecReload"
  )) "${pkgs.coreutils}/bin/kill -USR2 $MAINPID")
  (equal "in the background a change is a reload"
    (unitOf (machine {
      onSwitch = "background";
    })).reloadIfChanged
    true
  )
  (equal "a change can be ignored"
    (
      let
        unit = unitOf (machine {
          onSwitch = "ignore";
        });
      in
      [
        unit.restartIfChanged
        unit.reloadTriggers
        unit.restartTriggers
      ]
    )
    [
      false
      [ ]
      [ ]
    ]
  )
  (
    let
      trigger = instance: (unitOf (machine instance)).restartTriggers;
      base = trigger { };
    in
    equal "what a reload can apply restarts nothing, and all else does"
      {
        log = trigger { settings.log.level = "debug"; } == base;
        drain = trigger { settings.drain.timeout = "20s"; } == base;
        handler = trigger sql == base;
        concurrency =
          trigger {
            settings.queue = [
              {
                name = "default";
                concurrency = 3;
              }
            ];
          } == base;
        queue = trigger { settings.queue = [ { name = "other"; } ]; } == base;
        format = trigger { settings.log.format = "json"; } == base;
        redis = trigger { settings.redis.url = "redis://elsewhere"; } == base;
      }
      {
        log = true;
        drain = true;
        handler = true;
        concurrency = true;
        queue = false;
        format = false;
        redis = false;
      }
  )
  (mistyped "a switch that does something else" { onSwitch = "restart"; })

  # Stores of the same machine.
  (equal "a local Redis keeps what it is given"
    {
      inherit (machines.local.services.redis.servers.queue-worker)
        enable
        appendOnly
        settings
        ;
    }
    {
      enable = true;
      appendOnly = true;
      settings.maxmemory-policy = "noeviction";
    }
  )
  (equal "a local PostgreSQL has the database and its owner"
    {
      inherit (machines.local.services.postgresql) enable ensureDatabases ensureUsers;
    }
    {
      enable = true;
      ensureDatabases = [ "queue-worker" ];
      ensureUsers = [
        {
          name = "queue-worker";
          ensureDBOwnership = true;
        }
      ];
    }
  )
  (equal "without them there are none"
    [
      (machine { }).services.redis.servers
      (machine { }).services.postgresql.enable
      (unitOf (machine { })).requires
    ]
    [
      { }
      false
      [ ]
    ]
  )
  (equal "workers with users of their own have databases of their own"
    (evaluate {
      services.queue-worker = {
        enable = true;
        instances.a.database.createLocally = true;
        instances.b = {
          database.createLocally = true;
          user = "b";
        };
      };
    }).config.services.postgresql.ensureDatabases
    [
      "queue-worker"
      "b"
    ]
  )
  (refused "a local Redis, and another one in the settings" (machine {
    redis.createLocally = true;
    settings.redis.url = "redis://elsewhere";
  }) "redis.createLocally is on")
  (refused "a local PostgreSQL, and another one in the settings" (machine {
    database.createLocally = true;
    settings.postgres.url = "postgres://elsewhere/db";
  }) "database.createLocally is on")
  (equal "the migration can be left out" (lib.attrNames
    (machine {
      database.migrate = false;
    }).systemd.services
  ) [ "queue-worker-jobs" ])

  # The command line of an instance.
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
        "--property='LoadCredential=token:/run/secrets/token' "
      ])
      [
        true
        true
        true
        true
        true
      ]
  )

  # The rest.
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

  # The Incus host.
  (equal "a host's profile gives guests time"
    (lib.head (host { }).virtualisation.incus.preseed.profiles).config
    {
      "boot.autostart" = "true";
      "boot.host_shutdown_timeout" = "60";
      "boot.stop.priority" = "100";
    }
  )
  (accepted "a host with its defaults" (host { }))
  (refused "a host without Incus"
    (evaluate { services.queue-worker-incus-host.enable = true; }).config
    "virtualisation.incus.enable"
  )
  (warned "a host that stops its guests in a switch"
    (evaluate {
      virtualisation.incus = {
        enable = true;
        softDaemonRestart = false;
      };
      services.queue-worker-incus-host.enable = true;
    }).config
    "softDaemonRestart"
  )
]
++ [
  # The flake.
  (equal "the flake has what it says"
    (lib.mapAttrs (_: lib.attrNames) (
      lib.removeAttrs flake.self [
        "nixosModules"
        "overlays"
      ]
    ))
    (
      lib.genAttrs [ "apps" "checks" "devShells" "formatter" "packages" ] (_: [
        "aarch64-linux"
        "x86_64-linux"
      ])
    )
  )
  (equal "the package is named after the program" flake.self.packages.x86_64-linux.default.pname
    "queue-worker"
  )
  (equal "the overlay adds the package" (flake.self.overlays.default pkgs pkgs).queue-worker.pname
    "queue-worker"
  )
  (equal "the app is the program" flake.self.apps.x86_64-linux.default.program
    "${flake.self.packages.x86_64-linux.default}/bin/queue-worker"
  )
  (case "the shell has the servers" (lib.all
    (package: lib.elem package flake.self.devShells.x86_64-linux.default.packages)
    [
      pkgs.redis
      pkgs.postgresql
    ]
  ) "it has not")
  (equal "the checks" (lib.attrNames flake.checks) [
    "clippy"
    "crash"
    "failover"
    "fmt"
    "module"
    "package"
    "shutdown"
    "switch"
  ])
  (case "each check is a derivation" (lib.all lib.isDerivation (
    lib.attrValues flake.checks
  )) "one is not")
  (equal "the module brings its package"
    (evaluate [
      flake.self.nixosModules.default
      { services.queue-worker.enable = true; }
    ]).config.services.queue-worker.package.pname
    "queue-worker"
  )
]
++ lib.mapAttrsToList (name: config: accepted "a machine of the tests: ${name}" config) flake.nodes
++ map (
  guide: accepted "what docs/guides shows: ${guide.name}" (evaluate guide.module).config
) guides
++ [ (accepted "the quick start of the README" (evaluate quickStart).config) ]
