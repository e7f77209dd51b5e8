# A switch in the middle of a task: the old worker finishes it, the new one goes on, nothing runs twice.
# Both ways of onSwitch: "drain", where the switch waits, and "background", where it does not.
{ module }:
let
  helpers = import ./helpers.nix;
in
{
  name = "queue-worker-switch";

  nodes.machine =
    { lib, ... }:
    {
      imports = [ (import ./worker.nix { inherit module; }) ];
      services.queue-worker.instances.jobs = {
        redis.createLocally = true;
        database.createLocally = true;
      };

      system.switch.enable = true;

      # A change that a reload cannot apply, so that the worker has to be replaced.
      specialisation.changed.configuration.services.queue-worker.instances.jobs.settings.worker.max_in_flight =
        100;
      # The same, and one that it can.
      specialisation.reloaded.configuration.services.queue-worker.instances.jobs.settings = {
        worker.max_in_flight = 100;
        log.level = "debug";
      };
      specialisation.background.configuration.services.queue-worker.instances.jobs.onSwitch =
        "background";
      specialisation.background-changed.configuration.services.queue-worker.instances.jobs = {
        onSwitch = "background";
        settings.worker.max_in_flight = 200;
      };
    };

  testScript = ''
    ${helpers}

    BOOTED = "/run/booted-system"


    def pid():
        return machine.succeed(
            "systemctl show --property MainPID --value queue-worker-jobs.service"
        ).strip()


    def switch(name):
        return machine.succeed(
            f"{BOOTED}/specialisation/{name}/bin/switch-to-configuration test 2>&1"
        )


    def wait_for_another(before):
        machine.wait_until_succeeds(
            f"test $(systemctl show -P MainPID queue-worker-jobs.service) != {before}", timeout=60
        )
        machine.wait_for_unit("queue-worker-jobs.service")


    machine.wait_for_unit("queue-worker-jobs.service")

    with subtest("a switch waits for the task and replaces the worker"):
        before = pid()
        enqueue(machine, "first", 10)
        wait_for(machine, "begin first")
        switch("changed")
        assert count(machine, "end first") == 1, "the switch did not wait for the task"
        machine.wait_for_unit("queue-worker-jobs.service")
        assert pid() != before
        assert task(machine, "first")["status"] == "succeeded"

    with subtest("what a reload can apply interrupts nothing"):
        before = pid()
        enqueue(machine, "second", 20)
        wait_for(machine, "begin second")
        switch("reloaded")
        assert pid() == before
        assert count(machine, "end second") == 0, "the switch waited for the task"
        succeeded(machine, "second")
        assert count(machine, "begin second") == 1

    with subtest("in the background the switch does not wait, and the new worker follows"):
        before = pid()
        switch("background")
        wait_for_another(before)
        before = pid()
        enqueue(machine, "third", 20)
        wait_for(machine, "begin third")
        switch("background-changed")
        assert count(machine, "end third") == 0, "the switch waited for the task"
        wait_for(machine, "end third")
        wait_for_another(before)
        succeeded(machine, "third")
        assert count(machine, "begin third") == 1
  '';
}
