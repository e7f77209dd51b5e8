# `queue-worker-<name>`: the command line on the configuration of one instance, with what its unit has:
# the user, the group of the local Redis, the secrets, the programs of the handlers. For root, such as
# `sudo queue-worker-mail status`.
{
  lib,
  pkgs,
  cfg,
  name,
  instance,
  redisGroup,
}:
let
  properties = [
    "User=${instance.user}"
    "Group=${instance.group}"
    "Environment=QUEUE_WORKER_CONFIG=/etc/queue-worker/${name}.toml"
    # Where the worker notes its start: see `status`.
    "Environment=STATE_DIRECTORY=/var/lib/queue-worker/${name}"
    "Environment=PATH=${
      lib.makeBinPath (
        instance.extraPackages
        ++ [
          pkgs.coreutils
          pkgs.findutils
          pkgs.gnugrep
          pkgs.gnused
        ]
      )
    }"
  ]
  ++ lib.optional instance.redis.createLocally "SupplementaryGroups=${redisGroup}"
  ++ lib.optional (
    instance.environmentFile != null
  ) "EnvironmentFile=${toString instance.environmentFile}"
  ++ lib.mapAttrsToList (id: path: "LoadCredential=${id}:${toString path}") instance.credentials;
in
pkgs.writeShellScriptBin "queue-worker-${name}" ''
  exec systemd-run --quiet --collect --wait --pipe \
    ${
      lib.concatMapStringsSep " \\\n    " (
        property: "--property=${lib.escapeShellArg property}"
      ) properties
    } \
    -- ${lib.getExe cfg.package} "$@"
''
