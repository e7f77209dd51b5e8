# `queue-worker-<name>`: the command line on the configuration of one instance, with what its unit has:
# the user, the group of the local Redis, the secrets, the programs of the handlers. For root, such as
# `sudo queue-worker-mail status`.
#
# It runs as a unit of its own, `<unit>PID.service`, whose credentials come by a drop-in as those of the
# worker do. Its arguments are the program's alone: systemd expands nothing in them.
{
  lib,
  pkgs,
  cfg,
  name,
  instance,
  redisGroup,
  unit,
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
    # A Ctrl-C arrives as one.
    "KillSignal=SIGINT"
  ]
  ++ lib.optional instance.redis.createLocally "SupplementaryGroups=${redisGroup}"
  ++ lib.optional (
    instance.environmentFile != null
  ) "EnvironmentFile=${toString instance.environmentFile}";
in
pkgs.writeShellScriptBin "queue-worker-${name}" ''
  unit="${unit}$$.service"

  # A signal reaches this shell only, not what systemd runs for it.
  end() {
    systemctl stop "$unit" 2>/dev/null || kill "$run"
    wait "$run"
  }
  trap end HUP INT TERM

  systemd-run --quiet --collect --wait --pipe --unit="$unit" --expand-environment=no \
    ${
      lib.concatMapStringsSep " \\\n    " (
        property: "--property=${lib.escapeShellArg property}"
      ) properties
    } \
    -- ${lib.getExe cfg.package} "$@" <&0 &
  run=$!
  wait "$run"
''
