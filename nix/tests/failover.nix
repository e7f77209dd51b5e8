# Two workers on machines of their own, with the stores on a third: when one is cut off in the middle of
# a task, the other does it, and what the first still tries is refused.
{ module }:
let
  worker =
    { ... }:
    {
      imports = [ (import ./worker.nix { inherit module; }) ];
      services.queue-worker.instances.jobs.settings = {
        redis.url = "redis://stores:6379/0";
        postgres.url = "postgres://queue-worker@stores/queue-worker";
      };
    };
in
{
  name = "queue-worker-failover";

  nodes = {
    stores =
      { ... }:
      {
        services.redis.servers.queue-worker = {
          enable = true;
          bind = null;
          port = 6379;
          appendOnly = true;
          settings = {
            maxmemory-policy = "noeviction";
            protected-mode = "no";
          };
        };
        services.postgresql = {
          enable = true;
          enableTCPIP = true;
          ensureDatabases = [ "queue-worker" ];
          ensureUsers = [
            {
              name = "queue-worker";
              ensureDBOwnership = true;
            }
          ];
          # Only in this test: the machines have no other network.
          authentication = "host queue-worker queue-worker all trust";
        };
        networking.firewall.allowedTCPPorts = [
          5432
          6379
        ];
      };
    one = worker;
    two = worker;
  };

  testScript = ''
    ${import ./helpers.nix}

    stores.start()
    stores.wait_for_unit("postgresql.target")
    stores.wait_for_unit("redis-queue-worker.service")

    one.start()
    one.wait_for_unit("queue-worker-jobs.service")

    with subtest("the other worker takes over from one that is cut off"):
        # Up before the task begins, or it may end while this machine boots; idle, or it may be the
        # one to begin it.
        two.start()
        two.wait_for_unit("queue-worker-jobs.service")
        two.succeed("systemctl stop queue-worker-jobs.service")
        enqueue(one, "first", 15)
        wait_for(one, "begin first")
        one.block()
        two.succeed("systemctl start queue-worker-jobs.service")
        wait_for(two, "end first")
        succeeded(two, "first")
        assert count(two, "begin first") == 1

    with subtest("when it is back, it takes part again"):
        one.unblock()
        one.succeed("systemctl is-active queue-worker-jobs.service")
        two.succeed("systemctl stop queue-worker-jobs.service")
        enqueue(one, "second", 1)
        wait_for(one, "end second")
        succeeded(one, "second")

    with subtest("a crash of the machine is no different"):
        two.succeed("systemctl start queue-worker-jobs.service")
        one.succeed("systemctl stop queue-worker-jobs.service")
        enqueue(two, "third", 15)
        wait_for(two, "begin third")
        one.succeed("systemctl start queue-worker-jobs.service")
        two.crash()
        wait_for(one, "end third")
        succeeded(one, "third")
        assert task(one, "third")["crashes"] == 1
  '';
}
