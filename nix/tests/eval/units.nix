# The workers whose units are kept in nix/units: each name is an instance and a file.
{ pkgs }:
{
  # Only SQL: the module takes from the unit nearly all that it can.
  default = {
    handlers.account = {
      type = "sql";
      statement = "INSERT INTO inbox (id, body) VALUES ($2, $1)";
    };
  };

  # Programs, with a package of their own.
  exec = {
    handlers.resize = {
      type = "exec";
      command = [ "cat" ];
    };
    extraPackages = [ pkgs.imagemagick ];
  };

  # In a container whose host gives it 30 s.
  container = {
    handlers.resize = {
      type = "exec";
      command = [
        "/usr/bin/env"
        "true"
      ];
    };
    credentials.postgres = "/run/secrets/queue-worker-postgres";
    environmentFile = "/run/secrets/queue-worker.env";
    settings.postgres.password_file = "postgres";
  };

  # A switch does not wait for it.
  background = {
    onSwitch = "background";
    stopTimeout = 120;
    handlers.resize = {
      type = "exec";
      command = [
        "/usr/bin/env"
        "true"
      ];
    };
  };

  # With a Redis and a PostgreSQL of the same machine.
  local = {
    redis.createLocally = true;
    database.createLocally = true;
    settings.queue = [
      {
        name = "mail";
        concurrency = 4;
      }
    ];
  };
}
