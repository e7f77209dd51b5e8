# Everything that `make test`, `make lint` and the demo need.
{
  mkShell,
  cargo,
  cargo-deny,
  cargo-nextest,
  clippy,
  dbus,
  git,
  nodejs,
  postgresql,
  python3,
  redis,
  rust-analyzer,
  rustc,
  rustfmt,
  rustPlatform,
  util-linux,
}:
mkShell {
  packages = [
    cargo
    cargo-deny
    cargo-nextest
    clippy
    dbus # dbus-daemon, for the tests
    git
    nodejs
    postgresql
    python3
    redis
    rust-analyzer
    rustc
    rustfmt
    util-linux # setpriv
  ];
  # For rust-analyzer.
  RUST_SRC_PATH = rustPlatform.rustLibSrc;
}
