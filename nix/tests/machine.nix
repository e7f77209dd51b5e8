# A machine with one worker of each sort, to be evaluated.
{ lib, pkgs, ... }:
{
  services.queue-worker = {
    enable = true;
    instances = {
      mail = {
        redis.createLocally = true;
        database.createLocally = true;
        settings = {
          queue = [
            {
              name = "mail";
              concurrency = 32;
            }
          ];
          log.level = "info,queue_worker=debug";
        };
        handlers.welcome = {
          type = "exec";
          command = [ (lib.getExe pkgs.hello) ];
          timeout = "30s";
        };
        extraPackages = [ pkgs.git ];
        serviceOverrides.MemoryMax = "2G";
      };

      accounts = {
        onSwitch = "background";
        stopTimeout = 25;
        environmentFile = "/run/secrets/accounts.env";
        settings = {
          redis.url = "rediss://redis.example.org:6379/0";
          postgres.url = "postgres://queue-worker@db.example.org/queue-worker";
        };
        handlers.charge = {
          type = "sql";
          statement = "INSERT INTO charges (id, body) VALUES ($2, $1)";
        };
      };

      hooks = {
        onSwitch = "ignore";
        credentials = {
          postgres = "/run/secrets/postgres";
          token = "/run/secrets/token";
        };
        settings = {
          postgres.password_file = "postgres";
          web.listen = "127.0.0.1:9464";
        };
        handlers.notify = {
          type = "http";
          url = "https://example.org/hook";
          bearer_file = "token";
        };
      };
    };
  };
}
