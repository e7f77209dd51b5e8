#!/usr/bin/env bash
# What can be said about the Nix files without nixpkgs and without a network: each of them parses, so
# does the Nix in the documentation, and flake.lock locks what flake.nix asks for.
#
# Needs nix-instantiate; says loudly when it is missing and then checks nothing, unless NIX_REQUIRED=1.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v nix-instantiate >/dev/null; then
    echo '!!! SKIPPED: nix-instantiate is missing (Debian: apt-get install nix-bin)' >&2
    echo '!!! The Nix files were NOT checked.' >&2
    [ "${NIX_REQUIRED:-0}" = 0 ]
    exit
fi

# A store of our own, so that neither /nix nor a daemon is needed.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export NIX_STATE_DIR=$scratch/var NIX_STORE_DIR=$scratch/store NIX_LOG_DIR=$scratch/log
export NIX_CONF_DIR=$scratch/etc XDG_CACHE_HOME=$scratch/cache NIX_REMOTE=''

failed=0
parsed=0
parses() { # parses FILE NAME
    if message=$(nix-instantiate --parse "$1" 2>&1 >/dev/null); then
        parsed=$((parsed + 1))
    else
        printf '%s does not parse:\n%s\n' "$2" "$message" >&2
        failed=1
    fi
}

while IFS= read -r file; do
    parses "$file" "$file"
done < <(find flake.nix nix -name '*.nix' | sort)

# Each block of Nix in the documentation, as a file of its own, with the names that a module gets.
pages=(README.md)
while IFS= read -r page; do
    pages+=("$page")
done < <(find docs nix -name '*.md' | sort)
for page in "${pages[@]}"; do
    awk -v out="$scratch/${page//\//-}" '
        /^```nix$/ { inside = 1; name = out "-" NR; print "{ config, lib, pkgs, ... }:" > name; next }
        /^```$/ { if (inside) close(name); inside = 0 }
        inside { print > name }
    ' "$page"
    for block in "$scratch/${page//\//-}"-*; do
        [ -e "$block" ] || continue
        parses "$block" "$page, the block in line ${block##*-}"
    done
done

# The lock, compared by Nix itself.
verdict=$(nix-instantiate --eval --strict --expr '
    let
      asked = (import ./flake.nix).inputs;
      lock = builtins.fromJSON (builtins.readFile ./flake.lock);
      root = lock.nodes.${lock.root};
      wrong = name: let
        node = lock.nodes.${root.inputs.${name}};
        original = node.original;
        url = "${original.type}:${original.owner}/${original.repo}/${original.ref}";
      in
        if !(root.inputs ? ${name}) then "flake.lock does not know the input ${name}"
        else if asked.${name}.url != url then "${name} is ${asked.${name}.url} in flake.nix and ${url} in flake.lock"
        else if !(node.locked ? rev && node.locked ? narHash) then "${name} is not locked"
        else null;
      problems =
        builtins.filter (problem: problem != null) (map wrong (builtins.attrNames asked))
        ++ (if lock.version == 7 then [ ] else [ "flake.lock has another version than 7" ])
        ++ (if builtins.attrNames root.inputs == builtins.attrNames asked then [ ]
            else [ "flake.lock has other inputs than flake.nix" ])
        ++ (if builtins.length (builtins.attrNames lock.nodes) == builtins.length (builtins.attrNames asked) + 1
            then [ ] else [ "flake.lock has nodes that nobody asked for" ]);
    in builtins.concatStringsSep "; " problems')
if [ "$verdict" != '""' ]; then
    echo "flake.nix and flake.lock disagree: $verdict" >&2
    failed=1
fi

# Where nix knows flakes, it judges too: a lock that does not fit would need the network. Asked of a
# copy, since a worktree of git need not be one that nix understands.
flakes=(nix --extra-experimental-features 'nix-command flakes')
if "${flakes[@]}" eval --expr 1 >/dev/null 2>&1; then
    mkdir "$scratch/flake"
    cp flake.nix flake.lock "$scratch/flake"
    if ! message=$("${flakes[@]}" flake metadata --offline --no-update-lock-file \
        "path:$scratch/flake" 2>&1); then
        printf 'nix does not take flake.lock as it is:\n%s\n' "$message" >&2
        failed=1
    fi
    asked=' (nix agrees)'
fi

[ "$failed" = 0 ] || exit 1
echo "nix: $parsed files and blocks parse; flake.nix and flake.lock agree${asked:-}"
