# How the time of a stop is divided, against leases and the patience of hosts.
{
  words,
  lib,
  evaluate,
  ...
}:
let
  inherit (words)
    machine
    worker
    container
    lineOf
    settingsOf
    equal
    refused
    accepted
    warned
    ;
in
[
  (equal "the drain leaves time before systemd's limit" (settingsOf (machine { })).drain {
    timeout = "33s";
    kill_after = "5s";
    margin = "5s";
    stop_timeout = "45s";
  })
  (equal "a container stops before its host kills it" (lineOf (container { }) "TimeoutStopSec") 28)
  (accepted "a container with its defaults" (container { }))
  (equal "a host that waits longer leaves the default alone" (lineOf
    (evaluate {
      boot.isContainer = true;
      services.queue-worker = worker { } // {
        hostShutdownTimeout = 120;
      };
    }).config
    "TimeoutStopSec"
  ) 45)
  (warned "a container that needs longer than its host waits" (container {
    stopTimeout = 60;
  }) "boot.host_shutdown_timeout")
  (warned "a container whose drain may be extended past its host's patience" (container {
    settings.drain.extend_at_most = "10s";
  }) "a stop may take 38s")
  (accepted "a container that needs 60 s on a host that waits 90"
    (evaluate {
      boot.isContainer = true;
      services.queue-worker = worker { stopTimeout = 60; } // {
        hostShutdownTimeout = 90;
      };
    }).config
  )
  (warned "a container whose drain leaves too little" (container {
    stopTimeout = 29;
    settings.drain = {
      timeout = "26s";
      kill_after = "0s";
      margin = "2s";
    };
  }) "in a container")
  (refused "a drain that does not fit" (machine {
    settings.drain.timeout = "40s";
  }) "settings.drain needs 50s")
  (refused "a drain that fits to the second" (machine {
    settings.drain.timeout = "35s";
  }) "kills the worker after")
  (accepted "a drain that fits" (machine {
    settings.drain.timeout = "34500ms";
  }))
  (refused "a limit set past the module" (machine {
    serviceOverrides.TimeoutStopSec = 300;
  }) "set stopTimeout")
  (refused "a limit set past the module, in the settings" (machine {
    settings.drain.stop_timeout = "90s";
  }) "set stopTimeout")
  (equal "every stop limit leaves a drain" (lib.filter (
    seconds:
    let
      parts = import ../../../module/drain.nix { inherit lib; } seconds;
      sum = parts.timeout + parts.killAfter + parts.margin;
    in
    !(parts.timeout >= seconds / 2 && parts.margin >= 2 && sum < seconds)
  ) (lib.range 10 600)) [ ])

  (refused "a lease shorter than three heartbeats" (machine {
    settings.lease.ttl = "4s";
  }) "shorter than three heartbeats")
  (refused "a heartbeat too slow for the lease" (machine {
    settings.lease.heartbeat = "2s";
  }) "Raise settings.lease.ttl")
  (accepted "a longer lease" (machine {
    settings.lease = {
      ttl = "30s";
      heartbeat = "9s";
      min_idle = "30s";
    };
  }))
]
