# What would put a secret into the store, and what keeps it out.
{ words, lib, ... }:
let
  inherit (words)
    machine
    lineOf
    equal
    refused
    accepted
    mistyped
    failures
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
  (equal "a password in a URL, however it is written"
    (lib.filter (url: failures (machine { settings.postgres = { inherit url; }; }) == [ ]) [
      "POSTGRES://queue-worker:hunter2@db/queue-worker"
      "postgres://queue-worker@db/queue-worker?password=hunter2"
      "postgres://queue-worker@db/queue-worker?sslmode=require&password=hunter2"
      "postgres://queue-worker:hunt/er2@db/queue-worker"
      "postgres://queue-worker:123/er2@db/queue-worker"
      "postgres://queue-worker:hunt?er#2@db/queue-worker"
      "postgres://queue-worker:hunt@er2@db/queue-worker"
      "postgres://queue-worker@db/queue-worker?sslkey=${inStore}"
      "redis+unix:///run/redis.sock?db=1&user=me&pass=hunter2"
      "redis+sentinel://me:hunter2@a:1,[::1]:2/main/1"
      "rediss://:hunter2@redis/0"
    ])
    [ ]
  )
  (equal "a URL without a password" (lib.concatMap
    (
      url:
      failures (machine {
        settings.postgres = { inherit url; };
      })
    )
    [
      "postgres://queue-worker@[::1]:5433/queue-worker?sslmode=verify-full"
      "postgres://queue-worker@localhost/queue-worker?host=/run/postgresql"
      "redis://[::1]:6379/0"
      "redis://redis:6379/0?user=me@example.org"
      "redis+unix:///run/redis-queue-worker/redis.sock?db=0"
      "redis+sentinel://me@a:1,[::1]:2/main/1"
      "https://example.org:8443/@ada/hooks"
      "https://example.org/reset?passage=1"
      "https://example.org/hook?bypass=true&compass=1"
    ]
  ) [ ])
  (refused "a password in a URL among other words" (machine {
    handlers.work = {
      type = "exec";
      command = [
        "sh"
        "-c"
        "curl --proxy=http://me:hunter2@proxy 'https://example.org'"
      ];
    };
  }) "settings.handler.work.command would")
  (refused "a file of credentials that is copied into the store" (machine {
    handlers.commits = {
      type = "git-analysis";
      credential_files."example.org" = ./secrets.nix;
    };
  }) "settings.handler.commits.credential_files")
  (refused "a file of credentials in the store" (machine {
    handlers.commits = {
      type = "git-analysis";
      credential_files."example.org" = inStore;
    };
  }) "settings.handler.commits.credential_files")
  (refused "a key for ssh in the store" (machine {
    handlers.commits = {
      type = "git-analysis";
      ssh_command = "ssh -oIdentitiesOnly=yes -i ${inStore}";
    };
  }) "settings.handler.commits.ssh_command")
  (accepted "secrets outside of the store" (machine {
    handlers.commits = {
      type = "git-analysis";
      credential_files."example.org" = "/run/secrets/example.org";
      ssh_command = "${builtins.storeDir}/openssh/bin/ssh -i /run/secrets/key";
    };
  }))
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
