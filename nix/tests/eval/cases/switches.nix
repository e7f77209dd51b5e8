# What a switch does with a worker.
{
  words,
  lib,
  pkgs,
  ...
}:
let
  inherit (words)
    machine
    unitOf
    lineOf
    equal
    mistyped
    sql
    ;
in
[
  (equal "by default a reload reads the configuration again" (lib.last (
    lineOf (machine { }) "ExecReload"
  )) "${pkgs.coreutils}/bin/kill -HUP $MAINPID")
  (equal "in the background it drains" (lib.last (
    lineOf (machine { onSwitch = "background"; }) "ExecReload"
  )) "${pkgs.coreutils}/bin/kill -USR2 $MAINPID")
  (equal "in the background a change is a reload"
    (unitOf (machine {
      onSwitch = "background";
    })).reloadIfChanged
    true
  )
  (equal "a change can be ignored"
    (
      let
        unit = unitOf (machine {
          onSwitch = "ignore";
        });
      in
      [
        unit.restartIfChanged
        unit.reloadTriggers
        unit.restartTriggers
      ]
    )
    [
      false
      [ ]
      [ ]
    ]
  )
  (
    let
      trigger = instance: (unitOf (machine instance)).restartTriggers;
      base = trigger { };
    in
    equal "what a reload can apply restarts nothing, and all else does"
      {
        log = trigger { settings.log.level = "debug"; } == base;
        drain = trigger { settings.drain.timeout = "20s"; } == base;
        handler = trigger sql == base;
        concurrency =
          trigger {
            settings.queue = [
              {
                name = "default";
                concurrency = 3;
              }
            ];
          } == base;
        queue = trigger { settings.queue = [ { name = "other"; } ]; } == base;
        format = trigger { settings.log.format = "json"; } == base;
        redis = trigger { settings.redis.url = "redis://elsewhere"; } == base;
      }
      {
        log = true;
        drain = true;
        handler = true;
        concurrency = true;
        queue = false;
        format = false;
        redis = false;
      }
  )
  (mistyped "a switch that does something else" { onSwitch = "restart"; })
]
