# The flake's outputs with the stand-in for nixpkgs: that they are there and fit together, and what the
# machines of the tests are made of.
{
  lib,
  pkgs,
  evaluate,
}:
let
  flake = import ../../../flake.nix;
  self = flake.outputs {
    inherit self;
    nixpkgs = {
      outPath = toString ./.;
      legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (_: pkgs);
      lib = lib // {
        nixosSystem = { modules }: evaluate modules;
      };
    };
  };
  system = "x86_64-linux";
  # `evaluation` is what runs this.
  checks = removeAttrs self.checks.${system} [ "evaluation" ];
  tests = lib.filterAttrs (_: check: check ? test) checks;

  # Each node, and each of its specialisations.
  nodes = lib.concatMapAttrs (
    name: check:
    lib.concatMapAttrs (
      node: module:
      {
        "${name}, ${node}" = (evaluate module).config;
      }
      // lib.mapAttrs' (
        special: specialisation:
        lib.nameValuePair "${name}, ${node}, ${special}"
          (evaluate [
            module
            specialisation.configuration
          ]).config
      ) (evaluate module).config.specialisation
    ) check.test.nodes
  ) tests;
in
{
  inherit self checks nodes;
  scripts = lib.mapAttrs (_: check: check.test.testScript) tests;
}
