# Durations as the program writes them: a whole number and a unit, "1500ms", "45s", "2m", "1h", "7d".
{ lib }:
let
  millisecondsPer = {
    ms = 1;
    s = 1000;
    m = 60 * 1000;
    h = 60 * 60 * 1000;
    d = 24 * 60 * 60 * 1000;
  };
in
{
  # Milliseconds, or null for what is no duration: the program itself says what is wrong with it.
  parse =
    text:
    let
      parts = if builtins.isString text then builtins.match "0*([0-9]{1,12})(ms|s|m|h|d)" text else null;
    in
    if parts == null then
      null
    else
      lib.toInt (builtins.elemAt parts 0) * millisecondsPer.${builtins.elemAt parts 1};

  # The text of a number of milliseconds.
  show =
    milliseconds:
    if lib.mod milliseconds 1000 == 0 then
      "${toString (milliseconds / 1000)}s"
    else
      "${toString milliseconds}ms";
}
