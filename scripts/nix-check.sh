#!/usr/bin/env bash
# Evaluates the NixOS modules with the real `lib` of nixpkgs and a stand-in for the rest, and compares
# what comes out with what is committed: the units in nix/units, the reference docs/nixos-options.md.
# The cases of nix/tests/eval/cases.nix have to hold, and queue-worker has to accept each configuration.
#
#   NIXPKGS_LIB=/path/to/nixpkgs/lib scripts/nix-check.sh [--update]
#
# --update writes the committed files in place of comparing them. The program is QUEUE_WORKER, or what
# cargo has built last.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -e "${NIXPKGS_LIB:-}/default.nix" ]; then
    echo 'nix-check: say where the lib folder of nixpkgs is: make nix-check NIXPKGS_LIB=/path/to/nixpkgs/lib' >&2
    exit 2
fi
lib=$(cd "$NIXPKGS_LIB" && pwd)

program=${QUEUE_WORKER:-}
for built in target/release/queue-worker target/debug/queue-worker; do
    # The newest, or the check would be of yesterday's program.
    if [ -z "${QUEUE_WORKER:-}" ] && [ -x "$built" ] && { [ -z "$program" ] || [ "$built" -nt "$program" ]; }; then
        program=$built
    fi
done
if [ ! -x "$program" ]; then
    echo 'nix-check: there is no queue-worker; run cargo build, or set QUEUE_WORKER' >&2
    exit 2
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export NIX_STATE_DIR=$scratch/var NIX_STORE_DIR=$scratch/store NIX_LOG_DIR=$scratch/log
export NIX_CONF_DIR=$scratch/etc XDG_CACHE_HOME=$scratch/cache NIX_REMOTE=''

nix-instantiate --eval --strict --json --read-write-mode nix/tests/eval --arg nixpkgsLib "$lib" >"$scratch/found.json"

# Unpacks the answer into files, and says which cases failed.
python3 - "$scratch" <<'PYTHON'
import json
import pathlib
import sys

scratch = pathlib.Path(sys.argv[1])
found = json.loads((scratch / "found.json").read_text())


def write(folder, files):
    for name, text in files.items():
        path = scratch / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


write("units", found["units"])
write("configurations", {f"{name}.toml": text for name, text in found["configurations"].items()})
write("docs", {"nixos-options.md": found["options"]})

failed = [case for case in found["cases"] if not case["ok"]]
for case in failed:
    print(f"FAILED: {case['name']}; found: {case['found']}", file=sys.stderr)
for name, script in found["scripts"].items():
    compile(script, f"the script of nix/tests/{name}.nix", "exec")
print(f"nix-check: {len(found['cases']) - len(failed)} of {len(found['cases'])} cases hold")
sys.exit(bool(failed))
PYTHON

for configuration in "$scratch"/configurations/*.toml; do
    name=$(basename "$configuration" .toml)
    if ! message=$(env -i PATH="$PATH" "$program" check-config --config "$configuration" 2>&1); then
        printf 'FAILED: queue-worker refuses the configuration of %s:\n%s\n' "$name" "$message" >&2
        exit 1
    fi
done
echo "nix-check: queue-worker accepts $(find "$scratch/configurations" -type f | wc -l) configurations"

if [ "${1:-}" = --update ]; then
    find nix/units -mindepth 1 ! -name README.md -delete
    cp -r "$scratch/units/." nix/units
    cp "$scratch/docs/nixos-options.md" docs/nixos-options.md
    echo 'nix-check: wrote nix/units and docs/nixos-options.md'
    exit
fi
if ! diff -ru --exclude README.md nix/units "$scratch/units" ||
    ! diff -u docs/nixos-options.md "$scratch/docs/nixos-options.md"; then
    echo 'FAILED: what is committed is not what the module makes; run: make nix-units' >&2
    exit 1
fi
echo 'nix-check: nix/units and docs/nixos-options.md are what the module makes'
