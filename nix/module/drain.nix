# How the time that systemd grants a stop is divided: the drain, then the kill, then the hand-over,
# and a rest that nobody plans for. Seconds, all of them; what the parts sum up to is always less than
# the whole, or systemd's SIGKILL would race with our own exit.
{ lib }:
stopTimeout:
let
  sixth = stopTimeout / 6;
  killAfter = lib.max 1 (lib.min 5 sixth);
  margin = lib.max 2 (lib.min 5 sixth);
  rest = if stopTimeout >= 20 then 2 else 1;
in
{
  inherit killAfter margin;
  timeout = stopTimeout - killAfter - margin - rest;
}
