# One worker: the options of `services.queue-worker.instances.<name>`.
{
  lib,
  tomlType,
  top,
}:
{ name, config, ... }:
let
  inherit (lib) mkOption types;
  drain = import ./drain.nix { inherit lib; } config.stopTimeout;
  secretPath = types.externalPath;
in
{
  options = {
    enable = lib.mkEnableOption "this worker" // {
      default = true;
      example = false;
    };

    settings = mkOption {
      default = { };
      example = lib.literalExpression ''
        {
          redis.url = "rediss://redis.example.org:6379/0";
          postgres.url = "postgres://queue-worker@db.example.org/queue-worker?sslmode=verify-full";
          queue = [ { name = "mail"; concurrency = 32; } ];
          log.level = "debug";
        }
      '';
      description = ''
        The worker's configuration, section by section as in {file}`docs/configuration.md`. Every key
        of the program may be set here; what is not set has the program's default. Handlers go into
        `handlers`.
      '';
      type = types.submodule {
        freeformType = tomlType;
        options = {
          queue = mkOption {
            type = types.listOf (types.attrsOf tomlType);
            default = [ { name = "default"; } ];
            example = lib.literalExpression ''[ { name = "mail"; concurrency = 32; } ]'';
            description = "The queues that this worker serves, each with its `name`.";
          };
          redis.url = mkOption {
            type = types.str;
            default = "redis://127.0.0.1:6379/0";
            defaultText = lib.literalMD ''
              `"redis://127.0.0.1:6379/0"`, or the socket of the local server with
              `redis.createLocally`
            '';
            description = "The broker, without a password.";
          };
          postgres.url = mkOption {
            type = types.str;
            default = "postgres://queue-worker@localhost/queue-worker";
            defaultText = lib.literalMD ''
              `"postgres://queue-worker@localhost/queue-worker"`, or the socket of the local server
              with `database.createLocally`
            '';
            description = "The ledger, without a password.";
          };
          drain = {
            timeout = mkOption {
              type = types.str;
              default = "${toString drain.timeout}s";
              defaultText = lib.literalMD "what `stopTimeout` leaves: `\"33s\"` of 45 s";
              description = "How long running tasks may go on after a SIGTERM.";
            };
            kill_after = mkOption {
              type = types.str;
              default = "${toString drain.killAfter}s";
              defaultText = lib.literalMD "a sixth of `stopTimeout`, at most `\"5s\"`";
              description = "How long tasks that were then asked to stop have before they are killed.";
            };
            margin = mkOption {
              type = types.str;
              default = "${toString drain.margin}s";
              defaultText = lib.literalMD "a sixth of `stopTimeout`, at most `\"5s\"`";
              description = "What is kept for giving back tasks and locks.";
            };
            stop_timeout = mkOption {
              type = types.str;
              default = "${toString config.stopTimeout}s";
              defaultText = lib.literalMD "`stopTimeout`";
              description = "The unit's TimeoutStopSec. Set `stopTimeout` instead.";
            };
          };
        };
      };
    };

    handlers = mkOption {
      type = types.attrsOf (types.submodule (import ./handler.nix { inherit lib tomlType; }));
      default = { };
      example = lib.literalExpression ''
        {
          thumbnail = {
            type = "exec";
            command = [ (lib.getExe pkgs.imagemagick) "-" "-thumbnail" "200x200" "png:-" ];
            timeout = "30s";
          };
          charge = {
            type = "sql";
            statement = "INSERT INTO charges (id, body) VALUES ($2, $1)";
          };
        }
      '';
      description = "The handlers by the kind of task, as `[handler.KIND]` of the configuration.";
    };

    stopTimeout = mkOption {
      type = types.ints.between 10 86400;
      default =
        if top.hostShutdownTimeout == null then
          45
        else
          lib.max 10 (lib.min 45 (top.hostShutdownTimeout - 2));
      defaultText = lib.literalMD "45, or in a container 2 less than `hostShutdownTimeout`: 28";
      description = ''
        Seconds that systemd waits for this worker to stop before it kills it (`TimeoutStopSec`). The
        drain follows from it: running tasks may go on for about three quarters of it, the rest is for
        interrupting and giving back what is then unfinished. A value that is raised protects the
        deploys after the one that raises it, since a switch stops the old unit under its old limit.
      '';
    };

    onSwitch = mkOption {
      type = types.enum [
        "drain"
        "background"
        "ignore"
      ];
      default = "drain";
      description = ''
        What a switch does with a running worker that has changed.

        `drain`: stop it, wait for its drain, start the new one. A change of what the program can
        reload (handlers, the drain, concurrency, log level) only reloads it.

        `background`: tell it to pull nothing more and to finish at its own pace, and go on at once;
        when it is done, systemd starts the new one. Tasks may take as long as they like.

        `ignore`: nothing; it keeps running until somebody restarts it.
      '';
    };

    environmentFile = mkOption {
      type = types.nullOr secretPath;
      default = null;
      example = "/run/secrets/queue-worker.env";
      description = ''
        A file of `NAME=value` lines that systemd reads at each start, outside of the store: the place
        for `QUEUE_WORKER_REDIS__PASSWORD` and `QUEUE_WORKER_POSTGRES__PASSWORD`. Tasks do not see it.
      '';
    };

    credentials = mkOption {
      type = types.attrsOf secretPath;
      default = { };
      example = {
        postgres = "/run/secrets/queue-worker-postgres";
      };
      description = ''
        Files that systemd hands to the worker as credentials, by the name that `password_file` and
        the like refer to them by: with the example, `settings.postgres.password_file = "postgres"`.
        Programs of `exec` handlers can read them, since they run as the same user.
        They are set in a drop-in that sorts after the one by which LXC and Incus guests take
        credentials away.
      '';
    };

    redis.createLocally = mkOption {
      type = types.bool;
      default = false;
      description = ''
        Whether to run a Redis on this machine, shared by the instances that ask for it: with an
        append-only file, without eviction, reachable by its socket only. The worker starts after it
        and drains before it stops.
      '';
    };

    database = {
      createLocally = mkOption {
        type = types.bool;
        default = false;
        description = ''
          Whether to use a PostgreSQL on this machine, with a database and a role that are both named
          like `user`, reachable by the socket without a password. The worker starts after it and
          drains before it stops.
        '';
      };

      migrate = mkOption {
        type = types.bool;
        default = true;
        description = ''
          Whether each start brings the schema up to date first. An advisory lock orders workers that
          start at once, and a worker of the version before runs on the new schema too.
        '';
      };
    };

    extraPackages = mkOption {
      type = types.listOf types.package;
      default = [ ];
      example = lib.literalExpression "[ pkgs.git pkgs.ffmpeg-headless ]";
      description = "Packages on the PATH of `exec` and `git-analysis` handlers.";
    };

    user = mkOption {
      type = types.passwdEntry types.str;
      default = "queue-worker";
      example = "worker-${name}";
      description = ''
        The user that the worker and its tasks run as. `queue-worker` is created; another one is
        yours to create.
      '';
    };

    group = mkOption {
      type = types.str;
      default = if config.user == "queue-worker" then "queue-worker" else config.user;
      defaultText = lib.literalMD "the name of the user";
      description = "The user's group. `queue-worker` is created; another one is yours to create.";
    };

    serviceOverrides = mkOption {
      type = types.attrsOf types.unspecified;
      default = { };
      example = lib.literalExpression ''
        {
          MemoryMax = "2G";
          ProtectHome = false;
        }
      '';
      description = "Lines of the unit's `[Service]` section that win over those of this module.";
    };
  };

  config.settings = lib.mkMerge [
    {
      handler = lib.mapAttrs (_: lib.filterAttrs (_: value: value != null)) config.handlers;
    }
    (lib.mkIf config.redis.createLocally {
      redis.url = lib.mkDefault "redis+unix://${top.localRedisSocket}?db=0";
    })
    (lib.mkIf config.database.createLocally {
      postgres.url = lib.mkDefault "postgres://${config.user}@localhost/${config.user}?host=/run/postgresql";
    })
  ];
}
