# services.queue-worker: workers as units, with their configuration, user and stores.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.queue-worker;
  instances = lib.filterAttrs (_: instance: instance.enable) cfg.instances;
  redisGroup = config.services.redis.servers.queue-worker.group;

  configFile =
    name: instance:
    import ./config-file.nix {
      inherit
        lib
        pkgs
        cfg
        name
        instance
        ;
    };

  units =
    name: instance:
    import ./unit.nix {
      inherit
        lib
        pkgs
        cfg
        name
        instance
        redisGroup
        ;
      configFile = configFile name instance;
    };

  # The template of the units that the command line of an instance runs as.
  commandUnit = name: "run-queue-worker-${name}@";

  dropIns =
    name: instance:
    map
      (
        unit:
        pkgs.writeTextDir "etc/systemd/system/${unit}.service.d/zzzz-queue-worker.conf" (
          import ./drop-in.nix {
            inherit lib;
            inherit (instance) credentials;
          }
        )
      )
      (
        [
          "queue-worker-${name}"
          (commandUnit name)
        ]
        ++ lib.optional instance.database.migrate "queue-worker-${name}-migrate"
      );

  command =
    name: instance:
    import ./command.nix {
      inherit
        lib
        pkgs
        cfg
        name
        instance
        redisGroup
        ;
      unit = commandUnit name;
    };

  mirrors = import ./mirrors.nix { inherit lib; };

  findings = import ./assertions.nix {
    inherit lib cfg;
    isContainer = config.boot.isContainer;
  };

  users = map (instance: instance.user) (lib.attrValues instances);
  groups = map (instance: instance.group) (lib.attrValues instances);
in
{
  imports = [
    ./options.nix
    ./stores.nix
  ];

  config = lib.mkIf cfg.enable {
    inherit (findings) assertions warnings;

    environment.systemPackages = [ cfg.package ] ++ lib.mapAttrsToList command instances;

    environment.etc = lib.mapAttrs' (
      name: instance: lib.nameValuePair "queue-worker/${name}.toml" { source = configFile name instance; }
    ) instances;

    systemd.services = lib.mkMerge (lib.mapAttrsToList units instances);

    # Made when the system starts or is switched. Who may look into them is left as it is.
    systemd.tmpfiles.settings.queue-worker = lib.mkMerge (
      lib.mapAttrsToList (
        name: instance:
        lib.genAttrs (mirrors name instance) (_: {
          d = {
            inherit (instance) user group;
            mode = ":0700";
          };
        })
      ) instances
    );

    systemd.packages = lib.concatLists (
      lib.mapAttrsToList dropIns (lib.filterAttrs (_: instance: instance.credentials != { }) instances)
    );

    users.users = lib.mkIf (lib.elem "queue-worker" users) {
      queue-worker = {
        isSystemUser = true;
        group = "queue-worker";
        home = "/var/lib/queue-worker";
        description = "Queue worker";
        extraGroups = lib.optional (lib.any (
          instance: instance.redis.createLocally && instance.user == "queue-worker"
        ) (lib.attrValues instances)) redisGroup;
      };
    };
    users.groups = lib.mkIf (lib.elem "queue-worker" (users ++ groups)) { queue-worker = { }; };
  };
}
