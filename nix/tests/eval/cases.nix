# What the module has to accept, refuse and make, case by case: `{ name, ok, found }`.
{
  lib,
  pkgs,
  evaluate,
  machines,
  quickStart,
  guides,
  flake,
}:
let
  words = import ./cases/words.nix { inherit lib pkgs evaluate; };
  inherit (words) accepted;
  cases =
    file:
    import file {
      inherit
        lib
        pkgs
        evaluate
        machines
        flake
        words
        ;
    };
in
lib.concatMap cases [
  ./cases/workers.nix
  ./cases/stops.nix
  ./cases/secrets.nix
  ./cases/handlers.nix
  ./cases/switches.nix
  ./cases/stores.nix
  ./cases/incus.nix
  ./cases/flake.nix
]
++ lib.mapAttrsToList (name: config: accepted "a machine of the tests: ${name}" config) flake.nodes
++ map (
  guide: accepted "what docs/guides shows: ${guide.name}" (evaluate guide.module).config
) guides
++ [ (accepted "the quick start of the README" (evaluate quickStart).config) ]
