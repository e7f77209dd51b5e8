# A worker that is killed in the middle of a task: systemd starts it again, the lease ends by itself, and
# the task is done by the next process. A configuration that is broken is not started again and again.
{ module }:
{
  name = "queue-worker-crash";

  nodes.machine = {
    imports = [ (import ./worker.nix { inherit module; }) ];
    services.queue-worker.instances.jobs = {
      redis.createLocally = true;
      database.createLocally = true;
    };
  };

  testScript = ''
    ${import ./helpers.nix}

    machine.wait_for_unit("queue-worker-jobs.service")

    with subtest("the task of a killed worker runs again"):
        enqueue(machine, "first", 5)
        wait_for(machine, "begin first")
        machine.succeed("systemctl kill --kill-whom=all --signal=KILL queue-worker-jobs.service")
        succeeded(machine, "first")
        assert count(machine, "begin first") == 2
        assert count(machine, "end first") == 1
        assert task(machine, "first")["crashes"] == 1

    with subtest("a crash of Redis does not stop the worker"):
        machine.succeed("systemctl kill --signal=KILL redis-queue-worker.service")
        machine.wait_for_unit("redis-queue-worker.service")
        machine.succeed("systemctl is-active queue-worker-jobs.service")
        enqueue(machine, "second", 1)
        succeeded(machine, "second")

    with subtest("a broken configuration is not tried again"):
        machine.succeed("mkdir -p /run/systemd/system/queue-worker-jobs.service.d")
        machine.succeed(
            "printf '[Service]\nExecStartPre=\nEnvironment=QUEUE_WORKER_LEASE__TTL=soon\n'"
            " > /run/systemd/system/queue-worker-jobs.service.d/broken.conf"
        )
        machine.succeed("systemctl daemon-reload")
        machine.fail("systemctl restart queue-worker-jobs.service")
        machine.wait_until_succeeds("systemctl is-failed queue-worker-jobs.service", timeout=30)
        shown = machine.succeed("systemctl show -P ExecMainStatus queue-worker-jobs.service")
        assert shown.strip() == "78", shown
  '';
}
