# The Incus host.
{
  words,
  lib,
  evaluate,
  ...
}:
let
  inherit (words)
    equal
    refused
    accepted
    warned
    ;

  host =
    configuration:
    (evaluate {
      virtualisation.incus.enable = true;
      services.queue-worker-incus-host = {
        enable = true;
      }
      // configuration;
    }).config;
in
[
  (equal "a host's profile gives guests time"
    (lib.head (host { }).virtualisation.incus.preseed.profiles).config
    {
      "boot.autostart" = "true";
      "boot.host_shutdown_timeout" = "60";
      "boot.stop.priority" = "100";
    }
  )
  (accepted "a host with its defaults" (host { }))
  (refused "a host without Incus"
    (evaluate { services.queue-worker-incus-host.enable = true; }).config
    "virtualisation.incus.enable"
  )
  (warned "a host that stops its guests in a switch"
    (evaluate {
      virtualisation.incus = {
        enable = true;
        softDaemonRestart = false;
      };
      services.queue-worker-incus-host.enable = true;
    }).config
    "softDaemonRestart"
  )
]
