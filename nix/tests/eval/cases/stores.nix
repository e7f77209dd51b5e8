# Redis and PostgreSQL of the same machine.
{
  words,
  lib,
  evaluate,
  machines,
  ...
}:
let
  inherit (words)
    machine
    unitOf
    equal
    refused
    accepted
    ;

  together =
    instances:
    (evaluate {
      services.queue-worker = {
        enable = true;
        inherit instances;
      };
    }).config;
  local = {
    redis.createLocally = true;
    database.createLocally = true;
  };
in
[
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
  (equal "local stores that crash restart directly, past the workers"
    [
      machines.local.systemd.services.redis-queue-worker.serviceConfig
      machines.local.systemd.services.postgresql.serviceConfig
    ]
    [
      {
        Restart = "always";
        RestartMode = "direct";
      }
      { RestartMode = "direct"; }
    ]
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
  (refused "one queue with two databases" (together {
    a = local;
    b = local // {
      user = "b";
    };
  }) "a, b serve the queue default of one Redis")
  (accepted "one queue with one database" (together {
    a = local;
    b = local;
  }))
  (accepted "one database for two users" (together {
    a.settings.postgres.url = "postgres://a@db/tasks?sslmode=verify-full";
    b.settings.postgres.url = "postgres://b@db/tasks";
  }))
  (accepted "two queues with two databases" (together {
    a = local;
    b = local // {
      user = "b";
      settings.queue = [ { name = "other"; } ];
    };
  }))
  (accepted "two databases in both stores" (together {
    a = local;
    b = local // {
      user = "b";
      settings.redis.url = "redis+unix:///run/redis-queue-worker/redis.sock?db=1";
    };
  }))
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
]
