# The words that the cases are written in: machines to ask, and verdicts `{ name, ok, found }`.
{
  lib,
  pkgs,
  evaluate,
}:
let
  # A machine with one instance, `jobs`.
  machine = instance: (evaluate { services.queue-worker = worker instance; }).config;
  worker = instance: {
    enable = true;
    instances.jobs = instance;
  };
  container =
    instance:
    (evaluate {
      boot.isContainer = true;
      services.queue-worker = worker instance;
    }).config;

  unitOf = config: config.systemd.services.queue-worker-jobs;
  lineOf = config: key: (unitOf config).serviceConfig.${key};
  settingsOf = config: config.services.queue-worker.instances.jobs.settings;

  failures = config: map (one: one.message) (lib.filter (one: !one.assertion) config.assertions);

  case = name: ok: found: {
    inherit name ok;
    found = if lib.isString found then found else builtins.toJSON found;
  };

  equal =
    name: found: expected:
    case name (found == expected) found;

  # Exactly one assertion fails, and its message says this.
  refused =
    name: config: text:
    let
      messages = failures config;
    in
    case name (lib.length messages == 1 && lib.hasInfix text (lib.head messages)) messages;

  accepted =
    name: config:
    let
      messages = failures config ++ config.warnings;
    in
    case name (messages == [ ]) messages;

  warned =
    name: config: text:
    case name (
      failures config == [ ]
      && lib.length config.warnings == 1
      && lib.hasInfix text (lib.head config.warnings)
    ) config.warnings;

  # The evaluation itself fails: a wrong type.
  mistyped =
    name: instance:
    let
      tried = builtins.tryEval (
        builtins.deepSeq [
          (settingsOf (machine instance))
          (unitOf (machine instance)).text
          (machine instance).services.queue-worker.instances.jobs
        ] true
      );
    in
    case name (!tried.success) "it was accepted";

  exec.handlers.work = {
    type = "exec";
    command = [ "${pkgs.hello}/bin/hello" ];
  };
  sql.handlers.account = {
    type = "sql";
    statement = "SELECT 1";
  };
in
{
  inherit
    machine
    worker
    container
    unitOf
    lineOf
    settingsOf
    failures
    case
    equal
    refused
    accepted
    warned
    mistyped
    exec
    sql
    ;
}
