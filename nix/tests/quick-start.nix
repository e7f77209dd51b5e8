# The modules of the machine that the README shows, from the very text of the README.
{ lib }:
let
  readme = builtins.readFile ../../README.md;
  after = mark: text: lib.concatStringsSep mark (lib.tail (lib.splitString mark text));
  block = lib.head (lib.splitString "\n```" (after "```nix\n" (after "\n## On NixOS\n" readme)));
  # The reader's own part of the machine.
  text = lib.replaceStrings [ "./configuration.nix" ] [ "{ }" ] block;
  flake = import (builtins.toFile "quick-start.nix" text);
  outputs = flake.outputs {
    nixpkgs.lib = lib // {
      nixosSystem = arguments: arguments;
    };
    # Whoever evaluates the modules has this one already.
    queue-worker.nixosModules.default = { };
  };
in
assert lib.assertMsg (
  lib.length (lib.splitString "\n" block) <= 25
) "the quick start in README.md has more than 25 lines";
outputs.nixosConfigurations.machine.modules
