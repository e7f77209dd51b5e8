# The configuration of one instance as a file in the store, refused at build time if the program
# would refuse it at start. It holds no secret, and the check opens none.
{
  lib,
  pkgs,
  cfg,
  name,
  instance,
}:
let
  unchecked = (pkgs.formats.toml { }).generate "queue-worker-${name}.toml" instance.settings;
  # What NixOS puts on the PATH of every unit, after the packages of the instance.
  path = lib.makeBinPath (
    instance.extraPackages
    ++ [
      pkgs.coreutils
      pkgs.findutils
      pkgs.gnugrep
      pkgs.gnused
    ]
  );
in
if cfg.checkConfig then
  pkgs.runCommand "queue-worker-${name}-checked.toml" { preferLocalBuild = true; } ''
    cp ${unchecked} checked.toml
    env -i PATH=${path} ${lib.getExe cfg.package} check-config --config checked.toml
    cp checked.toml $out
  ''
else
  unchecked
