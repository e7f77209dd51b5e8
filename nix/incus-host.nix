# services.queue-worker-incus-host: an Incus host that gives its guests time to drain.
#
# Incus kills a guest that has not shut down boot.host_shutdown_timeout after the host began to, 30 s by
# default. This module puts a profile with a limit of one's own beside the default profile; guests get
# it with `incus launch … --profile default --profile queue-worker`.
{
  config,
  lib,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.queue-worker-incus-host;
in
{
  options.services.queue-worker-incus-host = {
    enable = lib.mkEnableOption "an Incus profile for guests that run queue workers";

    profile = mkOption {
      type = types.strMatching "[a-zA-Z0-9][a-zA-Z0-9-]*";
      default = "queue-worker";
      description = "The name of the profile.";
    };

    shutdownTimeout = mkOption {
      type = types.ints.between 12 480;
      default = 60;
      description = ''
        Seconds that a guest has to shut down before it is killed, when the host shuts down or
        {command}`incus admin shutdown` runs. Set `services.queue-worker.hostShutdownTimeout` of the
        guests to the same. It is at most 480, since the unit that shuts the guests down has 600.
      '';
    };

    stopPriority = mkOption {
      type = types.ints.between 0 1000;
      default = 100;
      description = ''
        Guests of a higher priority are shut down first, and those of one priority together. The
        profile's should be above that of the guests that run Redis and PostgreSQL (0 by default), so
        that workers drain while their stores are there.
      '';
    };

    autostart = mkOption {
      type = types.bool;
      default = true;
      description = "Whether guests with this profile are started when the host boots.";
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = config.virtualisation.incus.enable;
        message = "services.queue-worker-incus-host needs virtualisation.incus.enable = true.";
      }
    ];

    warnings = lib.optional (!config.virtualisation.incus.softDaemonRestart) ''
      virtualisation.incus.softDaemonRestart is off: a switch that restarts Incus stops every guest, and so interrupts every worker. Leave it on.
    '';

    virtualisation.incus.preseed.profiles = [
      {
        name = cfg.profile;
        description = "Guests that run queue workers";
        config = {
          "boot.autostart" = lib.boolToString cfg.autostart;
          "boot.host_shutdown_timeout" = toString cfg.shutdownTimeout;
          "boot.stop.priority" = toString cfg.stopPriority;
        };
      }
    ];
  };
}
