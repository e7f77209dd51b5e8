# The program, its manual pages and its completions.
{
  lib,
  stdenv,
  rustPlatform,
  rustc,
  installShellFiles,
}:
let
  manifest = (lib.importTOML ../Cargo.toml).package;

  # What the build and the tests read, so that a change of a page or a script rebuilds nothing.
  source = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [
      ../Cargo.toml
      ../Cargo.lock
      ../benches
      ../clippy.toml
      ../config
      ../docs/configuration.md
      ./units
      ../rustfmt.toml
      ../src
      ../tests
    ];
  };
in
# Said here, since the compiler's own message would come after minutes of other crates.
assert lib.assertMsg (lib.versionAtLeast rustc.version manifest.rust-version)
  "queue-worker needs Rust ${manifest.rust-version} or later, and this nixpkgs has ${rustc.version}";
rustPlatform.buildRustPackage {
  pname = manifest.name;
  inherit (manifest) version;
  src = source;
  cargoLock.lockFile = ../Cargo.lock;

  nativeBuildInputs = [ installShellFiles ];

  # The other test targets start Redis and Postgres servers.
  cargoTestFlags = [
    "--lib"
    "--test=architecture"
    "--test=config"
    "--test=simulation"
  ];

  postInstall = lib.optionalString (stdenv.buildPlatform.canExecute stdenv.hostPlatform) ''
    $out/bin/queue-worker man --dir manual
    installManPage manual/*.1
    installShellCompletion --cmd queue-worker \
      --bash <($out/bin/queue-worker completions bash) \
      --fish <($out/bin/queue-worker completions fish) \
      --zsh <($out/bin/queue-worker completions zsh)
  '';

  meta = {
    inherit (manifest) description;
    license = lib.licenses.asl20;
    mainProgram = "queue-worker";
    platforms = lib.platforms.linux;
  };
}
