# `nix flake check`: the package, the lints, the module with the real NixOS, and machines that run it.
# CI has no nixpkgs: there the files are parsed, and nix-check evaluates them; only this runs them.
{
  nixpkgs,
  pkgs,
  package,
  modules,
}:
let
  inherit (nixpkgs) lib;

  # The package's sources and vendored crates, for another cargo command.
  cargo =
    name: inputs: command:
    package.overrideAttrs (old: {
      pname = "${old.pname}-${name}";
      nativeBuildInputs = old.nativeBuildInputs ++ inputs;
      buildPhase = command;
      doCheck = false;
      installPhase = "touch $out";
      postInstall = "";
    });

  evaluation = import ./tests/eval {
    nixpkgsLib = nixpkgs + "/lib";
    pages = false;
  };
  failed = lib.filter (case: !case.ok) evaluation.cases;

  # What the module asks of a machine, with all of NixOS: that its options exist and take what they
  # are given, that no assertion fails, and that the program accepts each configuration.
  module =
    let
      inherit
        (lib.nixosSystem {
          modules = [
            modules.default
            ./tests/machine.nix
            {
              services.queue-worker.hostShutdownTimeout = 60;
              nixpkgs.pkgs = pkgs;
              boot.isContainer = true;
              system.stateVersion = lib.trivial.release;
            }
          ];
        })
        config
        ;
      broken = map (assertion: assertion.message) (
        lib.filter (assertion: !assertion.assertion) config.assertions
      );
      made = lib.concatMap (name: [
        config.systemd.units."queue-worker-${name}.service".unit
        config.environment.etc."queue-worker/${name}.toml".source
      ]) (lib.attrNames config.services.queue-worker.instances);
    in
    assert lib.assertMsg (broken == [ ]) (lib.concatLines broken);
    pkgs.runCommand "queue-worker-module" { } ''
      printf '%s\n' ${toString made} >$out
    '';

  machine = test: pkgs.testers.runNixOSTest (import test { module = modules.default; });
in
{
  inherit package module;

  clippy = cargo "clippy" [ pkgs.clippy ] "cargo clippy --all-targets --offline -- --deny warnings";
  fmt = cargo "fmt" [ pkgs.rustfmt ] "cargo fmt --check";

  evaluation =
    assert lib.assertMsg (failed == [ ]) (
      lib.concatMapStringsSep "\n" (case: "${case.name}: ${case.found}") failed
    );
    pkgs.runCommand "queue-worker-evaluation" { } "touch $out";

  switch = machine ./tests/switch.nix;
  crash = machine ./tests/crash.nix;
  failover = machine ./tests/failover.nix;
  shutdown = machine ./tests/shutdown.nix;
}
