# The everyday commands. Each needs cargo; the servers come from scripts/setup.sh.

CARGO ?= cargo
BIN := ./target/release/queue-worker

.PHONY: help setup test test-valkey demo bench lint fmt

help:
	@echo 'make test   all tests, with private Redis and Postgres servers'
	@echo 'make test-valkey   those that need a Redis, with Valkey in its place'
	@echo 'make demo   a deploy in the middle of work, on private servers'
	@echo 'make bench  how many tasks a second this machine does'
	@echo 'make lint   formatting, clippy and the documentation, warnings are errors'
	@echo 'make fmt    format the code'

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
