# The options of `services.queue-worker`.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.queue-worker;
  tomlType = (pkgs.formats.toml { }).type;
in
{
  options.services.queue-worker = {
    enable = lib.mkEnableOption "workers that take tasks from Redis Streams and record them in Postgres";

    package = lib.mkPackageOption pkgs "queue-worker" { };

    checkConfig = mkOption {
      type = types.bool;
      default = true;
      description = ''
        Whether the program checks each configuration while the system is built, so that a broken one
        is never deployed. It connects to nothing. Switch it off where the builder cannot run the
        program, as in a cross build.
      '';
    };

    hostShutdownTimeout = mkOption {
      type = types.nullOr (types.ints.between 12 86400);
      default = if config.boot.isContainer then 30 else null;
      defaultText = lib.literalMD "30 in a container (the default of Incus), else `null`";
      example = 120;
      description = ''
        Seconds after which the host kills this machine when the host itself shuts down: Incus'
        `boot.host_shutdown_timeout`. A worker has to be gone before.
      '';
    };

    instances = mkOption {
      type = types.attrsOf (
        types.submodule (
          import ./instance.nix {
            inherit lib tomlType;
            top = {
              inherit (cfg) hostShutdownTimeout;
              localRedisSocket = config.services.redis.servers.queue-worker.unixSocket;
            };
          }
        )
      );
      default = { };
      example = lib.literalExpression ''
        {
          mail.settings.queue = [ { name = "mail"; } ];
        }
      '';
      description = ''
        The workers of this machine. Each runs as {file}`queue-worker-<name>.service`, with its
        configuration in {file}`/etc/queue-worker/<name>.toml`.
      '';
    };
  };
}
