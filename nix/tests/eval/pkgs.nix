# As much of nixpkgs as evaluating the module needs: packages whose paths are placeholders, and the
# functions that make files, which remember what they were given.
{ lib }:
let
  placeholder = name: "/nix/store/00000000000000000000000000000000-${name}";

  package = name: {
    type = "derivation";
    overrideAttrs = change: package name // change (package name // { nativeBuildInputs = [ ]; });
    inherit name;
    pname = name;
    version = "0";
    outPath = placeholder name;
    outputs = [ "out" ];
    meta.mainProgram = name;
  };

  json =
    let
      value =
        lib.types.oneOf (
          with lib.types;
          [
            bool
            int
            float
            str
            path
            (attrsOf value)
            (listOf value)
          ]
        )
        // {
          description = "TOML value";
        };
    in
    value;

  pkgs =
    lib.genAttrs [
      "cargo"
      "cargo-deny"
      "cargo-nextest"
      "dbus"
      "clippy"
      "coreutils"
      "findutils"
      "git"
      "gnugrep"
      "gnused"
      "hello"
      "imagemagick"
      "installShellFiles"
      "nixfmt-tree"
      "nodejs"
      "postgresql"
      "python3"
      "queue-worker"
      "redis"
      "rust-analyzer"
      "rustfmt"
      "systemd"
      "util-linux"
    ] package
    // {
      inherit lib placeholder;
      callPackage = lib.callPackageWith pkgs;
      stdenv = {
        hostPlatform.system = "x86_64-linux";
        buildPlatform.canExecute = _: true;
      };
      rustc = package "rustc" // {
        version = "1.99.0";
      };
      rustPlatform = {
        rustLibSrc = placeholder "rust-lib-src";
        buildRustPackage = attributes: package attributes.pname // attributes;
      };
      mkShell = attributes: package "shell" // attributes;
      testers.runNixOSTest = test: package "vm-test-run-${test.name}" // { inherit test; };
      formats.toml = _: {
        type = json;
        generate = name: value: package name // { inherit value; };
      };
      formats.yaml = _: {
        type = json;
        generate = name: value: package name // { inherit value; };
      };
      runCommand =
        name: _: script:
        package name // { inherit script; };
      writeText = name: text: package name // { inherit text; };
      writeTextDir = path: text: package (baseNameOf path) // { inherit path text; };
      writeShellScriptBin = name: text: package name // { inherit text; };
      writeShellApplication = attributes: package attributes.name // attributes;
      writeShellScript = name: text: package name // { inherit text; };
    };
in
pkgs
