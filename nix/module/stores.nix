# A Redis and a PostgreSQL on the same machine, for the instances that ask for them.
{
  config,
  lib,
  ...
}:
let
  cfg = config.services.queue-worker;
  asking =
    store:
    lib.filter (instance: instance.enable && instance.${store}.createLocally) (
      lib.attrValues cfg.instances
    );
  users = lib.unique (map (instance: instance.user) (asking "database"));
in
{
  config = lib.mkIf cfg.enable {
    services.redis.servers.queue-worker = lib.mkIf (asking "redis" != [ ]) {
      enable = true;
      # Entries that were accepted survive a crash of the machine but for the last second; see
      # docs/producers.md for "always".
      appendOnly = true;
      appendFsync = lib.mkDefault "everysec";
      # An evicted stream would be a lost task.
      settings.maxmemory-policy = "noeviction";
    };

    services.postgresql = lib.mkIf (users != [ ]) {
      enable = true;
      ensureDatabases = users;
      ensureUsers = map (user: {
        name = user;
        ensureDBOwnership = true;
      }) users;
    };

    # Direct (systemd 254): a store that crashes and starts again is no restart of the workers that
    # require it, for whose drain it would wait. A stop still reaches them first.
    systemd.services.redis-queue-worker = lib.mkIf (asking "redis" != [ ]) {
      serviceConfig = {
        Restart = lib.mkDefault "always";
        RestartMode = lib.mkDefault "direct";
      };
    };
    systemd.services.postgresql = lib.mkIf (users != [ ]) {
      serviceConfig.RestartMode = lib.mkDefault "direct";
    };
  };
}
