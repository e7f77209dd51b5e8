# A machine that shuts down in the middle of a task with its stores on board: the worker drains before
# they stop, so that after the next boot the task is known to be done.
{ module }:
{
  name = "queue-worker-shutdown";

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

    with subtest("a task that fits into the drain is finished"):
        enqueue(machine, "short", 10)
        wait_for(machine, "begin short")
        machine.shutdown()
        machine.start()
        machine.wait_for_unit("queue-worker-jobs.service")
        assert task(machine, "short")["status"] == "succeeded"
        assert count(machine, "begin short") == 1

    with subtest("one that does not fit is given back, and costs no attempt"):
        enqueue(machine, "long", 60)
        wait_for(machine, "begin long")
        machine.shutdown()
        machine.start()
        machine.wait_for_unit("queue-worker-jobs.service")
        succeeded(machine, "long")
        assert count(machine, "begin long") == 2
        shown = task(machine, "long")
        assert shown["crashes"] == 0, shown
  '';
}
