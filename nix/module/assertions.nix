# What can be said about an instance without the program: each finding names the option and the
# remedy. The rules between keys are the program's (docs/configuration.md, "Rules between keys"); those
# that cost tasks at a deploy are repeated here, so that they fail before anything is built.
{
  lib,
  cfg,
  isContainer,
}:
let
  duration = import ./duration.nix { inherit lib; };

  # A duration of the settings in milliseconds, or of the program's default.
  read =
    settings: path: default:
    let
      value = duration.parse (lib.attrByPath path default settings);
    in
    if value == null then duration.parse default else value;

  secretsIn = import ./secrets.nix { inherit lib; };

  name' = name: "services.queue-worker.instances.${name}";

  secrets =
    name: instance:
    let
      found = secretsIn instance.settings;
    in
    {
      assertion = found == [ ];
      message = ''
        ${name' name}: ${lib.concatStringsSep ", " found} would put a secret into the Nix store, which every user can read. Name a file outside of it, such as "/run/secrets/…", or use environmentFile.
      '';
    };

  lease =
    name: instance:
    let
      ttl = read instance.settings [ "lease" "ttl" ] "5s";
      heartbeat = read instance.settings [ "lease" "heartbeat" ] "1500ms";
      call = read instance.settings [ "redis" "call_timeout" ] "500ms";
    in
    {
      assertion = ttl >= 3 * heartbeat + call;
      message = ''
        ${name' name}: settings.lease.ttl is ${duration.show ttl}, shorter than three heartbeats and one call of Redis, ${
          duration.show (3 * heartbeat + call)
        }. Raise settings.lease.ttl or lower settings.lease.heartbeat.
      '';
    };

  drainOf =
    instance:
    let
      drain = instance.settings.drain;
      part = key: duration.parse drain.${key};
      parts = map part [
        "timeout"
        "kill_after"
        "margin"
      ];
    in
    if lib.all (value: value != null) parts then lib.foldl' builtins.add 0 parts else 0;

  drain = name: instance: {
    assertion = drainOf instance < instance.stopTimeout * 1000;
    message = ''
      ${name' name}: settings.drain needs ${duration.show (drainOf instance)} (timeout + kill_after + margin), and systemd kills the worker after stopTimeout = ${toString instance.stopTimeout} s. Raise stopTimeout, or lower settings.drain.timeout.
    '';
  };

  stopLimit = name: instance: {
    assertion =
      instance.settings.drain.stop_timeout == "${toString instance.stopTimeout}s"
      && !(instance.serviceOverrides ? TimeoutStopSec);
    message = ''
      ${name' name}: set stopTimeout, and neither serviceOverrides.TimeoutStopSec nor settings.drain.stop_timeout: the drain follows from it.
    '';
  };

  handlers =
    name: instance:
    lib.mapAttrsToList (
      kind: handler:
      let
        needed = {
          exec = "command";
          sql = "statement";
          http = "url";
          git-analysis = null;
        };
        key = needed.${handler.type};
      in
      {
        assertion =
          key == null || (handler.${key} != null && handler.${key} != [ ] && handler.${key} != "");
        message = ''
          ${name' name}.handlers.${kind}: type = "${handler.type}" needs ${toString key}${
            lib.optionalString (
              handler.type == "exec"
            ) '': the program and its arguments, such as [ "''${pkgs.hello}/bin/hello" ]''
          }.
        '';
      }
    ) instance.handlers;

  names = name: {
    assertion =
      builtins.match "[a-zA-Z0-9][a-zA-Z0-9_.-]*" name != null && !(lib.hasSuffix "-migrate" name);
    message = ''
      ${name' name}: the name becomes part of units and of paths; write it of letters, digits, ".", "_" and "-", and do not end it with "-migrate".
    '';
  };

  local = name: instance: [
    {
      assertion = instance.redis.createLocally -> lib.hasInfix "unix:" instance.settings.redis.url;
      message = "${name' name}: redis.createLocally is on, and settings.redis.url leads elsewhere. Remove one of them.";
    }
    {
      assertion =
        instance.database.createLocally
        -> lib.hasInfix "host=/run/postgresql" instance.settings.postgres.url;
      message = "${name' name}: database.createLocally is on, and settings.postgres.url leads elsewhere. Remove one of them.";
    }
  ];

  # A queue in its Redis, and the ledger of its tasks, by their URLs: whoever connects is no difference.
  served = each (
    name: instance:
    map (
      queue:
      let
        withoutUser = url: lib.last (builtins.match "([^:]*://)([^@]*@)?(.*)" url);
      in
      {
        inherit name;
        queue = queue.name or "";
        redis = withoutUser instance.settings.redis.url;
        ledger = lib.head (lib.splitString "?" (withoutUser instance.settings.postgres.url));
      }
    ) instance.settings.queue
  );

  ledgers = lib.mapAttrsToList (
    _: workers:
    let
      names = lib.concatMapStringsSep ", " (worker: worker.name) workers;
    in
    {
      assertion = lib.length (lib.unique (map (worker: worker.ledger) workers)) == 1;
      message = ''
        services.queue-worker.instances: ${names} serve the queue ${(lib.head workers).queue} of one Redis and record its tasks in different databases, so that neither knows what the other has done. Give them the same settings.postgres.url, other queues, or a database of Redis each, such as settings.redis.url = "…?db=1".
      '';
    }
  ) (lib.groupBy (worker: "${worker.queue} ${worker.redis}") served);

  # The drain that is left in a container whose host gives its guests 30 s by default.
  mostInContainer = 25 * 1000;
  container =
    name: instance:
    let
      host = cfg.hostShutdownTimeout;
      timeout = duration.parse instance.settings.drain.timeout;
      # A drain may be allowed to take longer while tasks end.
      extension = read instance.settings [ "drain" "extend_at_most" ] "0s";
      needed = instance.stopTimeout * 1000 + extension;
      tooLong = host != null && needed >= host * 1000;
    in
    lib.optional tooLong ''
      ${name' name}: a stop may take ${duration.show needed}, and the host kills this machine after ${toString host} s (Incus' boot.host_shutdown_timeout) when it shuts down itself. Lower stopTimeout, or raise the host's limit and then services.queue-worker.hostShutdownTimeout.
    ''
    ++
      lib.optional
        (
          !tooLong
          && isContainer
          && (host == null || host <= 30)
          && timeout != null
          && timeout > mostInContainer
        )
        ''
          ${name' name}: in a container settings.drain.timeout = ${duration.show timeout} leaves too little of the 30 s after which Incus kills its guests by default. Lower it to 25s or less, or raise the host's boot.host_shutdown_timeout and then services.queue-worker.hostShutdownTimeout.
        '';

  instances = lib.filterAttrs (_: instance: instance.enable) cfg.instances;
  each = f: lib.concatLists (lib.mapAttrsToList f instances);
in
{
  assertions = each (
    name: instance:
    [
      (names name)
      (secrets name instance)
      (lease name instance)
      (drain name instance)
      (stopLimit name instance)
    ]
    ++ handlers name instance
    ++ local name instance
  )
  ++ ledgers;

  warnings =
    each container
    ++ lib.optional (
      instances == { }
    ) "services.queue-worker is enabled without an instance, so that no worker runs.";
}
