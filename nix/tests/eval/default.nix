# Evaluates the module with the real `lib` of nixpkgs and a stand-in for the rest, and gives back what
# scripts/nix-check.sh compares: findings of the cases, unit texts, configurations, the options'
# reference.
#
#   nix-instantiate --eval --strict --json nix/tests/eval --arg nixpkgsLib /path/to/nixpkgs/lib
{
  nixpkgsLib,
  # Whether to evaluate what the pages show. A flake cannot: its evaluation is pure, and text becomes
  # Nix only by way of a file.
  pages ? true,
}:
let
  lib = import nixpkgsLib;
  quickStart = if pages then import ../quick-start.nix { inherit lib; } else [ ];
  guides = if pages then import ../guides.nix { inherit lib; } else [ ];
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
      specialArgs = {
        inherit pkgs;
        modulesPath = ./modules;
      };
    };

  units = import ./units.nix { inherit pkgs; };

  flake = import ./flake.nix { inherit lib pkgs evaluate; };

  settingsOf =
    prefix: modules:
    lib.mapAttrs' (
      name: instance: lib.nameValuePair "${prefix}-${name}" instance.settings
    ) (evaluate modules).config.services.queue-worker.instances;

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

  commandOf =
    config: name:
    (lib.findFirst (
      package: package.name == "queue-worker-${name}"
    ) null config.environment.systemPackages).text;
in
{
  cases = import ./cases.nix {
    inherit
      lib
      pkgs
      evaluate
      machines
      quickStart
      guides
      flake
      ;
  };

  # Python, which whoever reads this can compile.
  inherit (flake) scripts;

  # Those of the workers: what the module adds to the units of stores is no unit by itself.
  units =
    lib.concatMapAttrs (
      _: config:
      lib.mapAttrs' (name: unit: lib.nameValuePair "${name}.service" unit.text) (
        lib.filterAttrs (name: _: lib.hasPrefix "queue-worker-" name) config.systemd.services
      )
    ) machines
    // dropIns
    // {
      # The command line of the one that has secrets of both kinds.
      queue-worker-container = commandOf machines.container "container";
    };

  configurations = lib.mapAttrs (_: import ./toml.nix { inherit lib; }) (
    lib.mapAttrs (name: config: config.services.queue-worker.instances.${name}.settings) machines
    // settingsOf "machine" ../machine.nix
    // settingsOf "quick-start" quickStart
    // lib.concatMapAttrs settingsOf (
      lib.listToAttrs (map (guide: lib.nameValuePair guide.name guide.module) guides)
    )
  );

  options = import ./reference.nix {
    inherit lib;
    options = (evaluate { }).options;
  };
}
