# What would put a secret into the store, and what keeps it out.
{ words, ... }:
let
  inherit (words)
    machine
    lineOf
    equal
    refused
    accepted
    mistyped
    ;

  inStore = "${builtins.storeDir}/00000000000000000000000000000000-secret";
in
[
  (refused "a password file in the store" (machine {
    settings.redis.password_file = inStore;
  }) "settings.redis.password_file would put a secret into the Nix store")
  (refused "a password file as a path" (machine {
    settings.postgres.password_file = ./secrets.nix;
  }) "settings.postgres.password_file")
  (refused "a bearer token in the store" (machine {
    handlers.notify = {
      type = "http";
      url = "https://example.org";
      bearer_file = inStore;
    };
  }) "settings.handler.notify.bearer_file")
  (refused "a header's secret in the store" (machine {
    handlers.notify = {
      type = "http";
      url = "https://example.org";
      header_files.X-Key = inStore;
    };
  }) "settings.handler.notify.header_files")
  (refused "a password in the settings" (machine {
    settings.redis.password = "hunter2";
  }) "settings.redis.password")
  (refused "a password in a URL" (machine {
    settings.postgres.url = "postgres://queue-worker:hunter2@db/queue-worker";
  }) "settings.postgres.url")
  (refused "a password in the URL of a lock node" (machine {
    settings.lease.nodes = [
      "redis://a/0"
      "redis://:hunter2@b/0"
      "redis://c/0"
    ];
  }) "settings.lease.nodes")
  (accepted "a port and a user in a URL are no password" (machine {
    settings.postgres.url = "postgres://queue-worker@db:5433/queue-worker";
  }))
  (mistyped "an environment file in the store" { environmentFile = inStore; })
  (mistyped "a credential in the store" { credentials.redis = inStore; })
  (equal "an environment file" (lineOf (machine {
    environmentFile = "/run/secrets/env";
  }) "EnvironmentFile") "/run/secrets/env")
  (equal "credentials come after what LXC says"
    (map (package: package.path)
      (machine {
        credentials.redis = "/run/secrets/redis";
      }).systemd.packages
    )
    [
      "etc/systemd/system/queue-worker-jobs.service.d/zzzz-queue-worker.conf"
      "etc/systemd/system/run-queue-worker-jobs@.service.d/zzzz-queue-worker.conf"
      "etc/systemd/system/queue-worker-jobs-migrate.service.d/zzzz-queue-worker.conf"
    ]
  )
]
