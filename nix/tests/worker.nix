# A machine with one worker whose tasks take a while, for the tests in virtual machines. The handler
# notes when a task begins and ends, in a file that is the only effect it has.
{ module }:
{ lib, pkgs, ... }:
let
  work = pkgs.writeShellScript "work" ''
    # The payload is how many seconds the task takes.
    seconds=$(cat)
    echo "begin $QUEUE_WORKER_TASK_ID" >>"$HOME/effects"
    sleep "$seconds" &
    wait $!
    echo "end $QUEUE_WORKER_TASK_ID" >>"$HOME/effects"
  '';
in
{
  imports = [ module ];

  services.queue-worker = {
    enable = true;
    instances.jobs = {
      settings.queue = [ { name = "jobs"; } ];
      handlers.work = {
        type = "exec";
        command = [ "${work}" ];
        timeout = "5m";
      };
    };
  };

  virtualisation.memorySize = lib.mkDefault 1024;
}
