# Evaluates the module with the real `lib` of nixpkgs and a stand-in for the rest, and gives back what
# scripts/nix-check.sh compares: findings of the cases, unit texts, configurations, the options'
# reference.
#
#   nix-instantiate --eval --strict --json nix/tests/eval --arg nixpkgsLib /path/to/nixpkgs/lib
{
  nixpkgsLib,
  quickStart ? null,
}:
let
  lib = import nixpkgsLib;
  pkgs = import ./pkgs.nix { inherit lib; };

  evaluate =
    modules:
    lib.evalModules {
      modules = [
        ./nixos.nix
        ../../module
        ../../incus-host.nix
      ]
      ++ lib.toList modules;
      specialArgs = { inherit pkgs; };
    };

  units = import ./units.nix { inherit pkgs; };

  # One machine for each of the kept units, since a container is a machine.
  machine =
    name: instance:
    (evaluate {
      boot.isContainer = name == "container";
      services.queue-worker = {
        enable = true;
        instances.${name} = instance;
      };
    }).config;
  machines = lib.mapAttrs machine units;

  dropIns = lib.listToAttrs (
    lib.concatMap (
      config:
      map (
        package: lib.nameValuePair (lib.removePrefix "etc/systemd/system/" package.path) package.text
      ) config.systemd.packages
    ) (lib.attrValues machines)
  );
in
{
  cases = import ./cases.nix {
    inherit
      lib
      pkgs
      evaluate
      machines
      quickStart
      ;
  };

  units =
    lib.mapAttrs' (
      name: config:
      lib.nameValuePair "queue-worker-${name}.service" config.systemd.services."queue-worker-${name}".text
    ) machines
    // dropIns;

  configurations =
    lib.mapAttrs (
      name: config: config.services.queue-worker.instances.${name}.settings
    ) machines
    // lib.optionalAttrs (quickStart != null) (
      lib.mapAttrs' (
        name: instance: lib.nameValuePair "quick-start-${name}" instance.settings
      ) (evaluate quickStart).config.services.queue-worker.instances
    );

  options = import ./reference.nix {
    inherit lib;
    options = (evaluate { }).options;
  };
}
