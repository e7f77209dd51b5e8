# Python for the test scripts: enqueue, wait for an effect, ask for a status. The worker's machine is
# the first argument of each.
''
  import json

  EFFECTS = "/var/lib/queue-worker/jobs/effects"


  def enqueue(machine, task, seconds):
      machine.succeed(f"queue-worker-jobs enqueue jobs --kind work --id {task} --payload {seconds}")


  def wait_for(machine, effect):
      machine.wait_until_succeeds(f"grep -qx '{effect}' {EFFECTS}", timeout=90)


  def count(machine, effect):
      return int(machine.succeed(f"grep -cx '{effect}' {EFFECTS} || true"))


  def task(machine, name):
      return json.loads(machine.succeed(f"queue-worker-jobs tasks show {name} --json"))


  def succeeded(machine, name):
      machine.wait_until_succeeds(
          f"queue-worker-jobs tasks show {name} --json | grep -q '\"status\": *\"succeeded\"'", timeout=120
      )
''
