#!/usr/bin/env bash
# Makes sure that everything which the tests and the demo need is installed. `systemd` and `incus` as
# arguments add what `make test-systemd` and `make test-incus` need.
#
# Nothing is done when nothing is missing. On Debian and Ubuntu the missing packages are installed
# with apt-get, as root or through `sudo -n`, without a question and without starting a service: we
# use the programs only and start our own private servers. Elsewhere it says what to do and fails.
set -euo pipefail

packages=()
names=()

need() { # need NAME PACKAGE... : to be installed
    names+=("$1")
    shift
    packages+=("$@")
}

has() {
    command -v "$1" >/dev/null 2>&1
}

has_postgres() {
    has initdb && has postgres && return
    local program
    for program in /usr/lib/postgresql/*/bin/initdb; do
        [ -x "$program" ] && return
    done
    return 1
}

has redis-server || has valkey-server || need 'Redis (redis-server) or Valkey' redis-server
has_postgres || need 'Postgres (postgres, initdb)' postgresql
has git || need git git
has cc || need 'a C compiler (cc)' gcc libc6-dev
has dbus-daemon || need 'dbus-daemon (D-Bus)' dbus
has setpriv || need 'setpriv (util-linux)' util-linux
# Only where it costs nobody a question; elsewhere scripts/valkey.sh looks further.
may_install() {
    [ "$(id -u)" -eq 0 ] || { has sudo && sudo -n true 2>/dev/null; }
}
if ! has valkey-server && has apt-get && apt-cache show valkey-server >/dev/null 2>&1 && may_install
then
    need 'Valkey (valkey-server), for the tests' valkey-server
fi
if ! has python3; then
    need 'Python 3 with venv and pip' python3 python3-venv python3-pip
elif ! python3 -c 'import ensurepip, venv' >/dev/null 2>&1; then
    need 'the venv and pip modules of Python 3' python3-venv python3-pip
fi

backports=
for part in "$@"; do
    case $part in
    systemd)
        [ -x /lib/systemd/systemd ] || need 'systemd itself' systemd
        has systemd-nspawn || need 'systemd-nspawn' systemd-container
        has dbus-daemon || need 'the bus of systemd (dbus-daemon)' dbus
        ;;
    incus)
        has debootstrap || need debootstrap debootstrap
        if ! [ -x /usr/libexec/incus/incusd ] || ! has incus; then
            need 'Incus (incusd, incus)' incus-base incus-client
            backports=incus-base
        fi
        ;;
    nix)
        has nix-instantiate || need 'Nix (nix-instantiate)' nix-bin
        ;;
    *)
        echo "setup: $part is not a part that I know: systemd, incus, nix" >&2
        exit 2
        ;;
    esac
done

if [ ${#packages[@]} -eq 0 ]; then
    exit 0
fi

echo 'setup: missing:' >&2
printf '  %s\n' "${names[@]}" >&2

if ! has apt-get; then
    if has nix || [ -e /etc/NIXOS ]; then
        echo 'setup: enter the development shell, which has them all: nix develop' >&2
    else
        echo 'setup: install them with the package manager of this system; on Debian they are:' >&2
        echo "  ${packages[*]}" >&2
    fi
    exit 1
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if has sudo && sudo -n true 2>/dev/null; then
        as_root=(sudo -n)
    else
        echo 'setup: not root, and sudo wants a password; run this yourself:' >&2
        echo "  sudo apt-get install --no-install-recommends ${packages[*]}" >&2
        exit 1
    fi
fi

# A policy of 101 forbids package scripts to start services. One that is already there is kept.
policy=/usr/sbin/policy-rc.d
leftovers=()
trap '"${as_root[@]}" rm -rf "${leftovers[@]}"' EXIT
if [ ! -e "$policy" ]; then
    leftovers+=("$policy")
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
fi

apt_options=(-o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)

apt() {
    # The lock is waited for, since a new machine may still be updating itself.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get "${apt_options[@]}" -qq "$@" </dev/null
}

install_packages() {
    apt install -y --no-install-recommends "${packages[@]}"
}

candidate() { # candidate PACKAGE : the version that would be installed
    apt-cache "${apt_options[@]}" policy "$1" | sed -n 's/^ *Candidate: *//p' | grep -v '(none)'
}

# Adds the backports of this Debian for this run alone: the machine's own sources stay as they are.
add_backports() {
    local release folder
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    folder=$(mktemp -d)
    leftovers+=("$folder")
    mkdir -p "$folder/lists/partial"
    chmod -R a+rX "$folder"
    {
        cat /etc/apt/sources.list 2>/dev/null || true
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
            "http://deb.debian.org/debian $release-backports main"
    } >"$folder/sources.list"
    apt_options+=(-o "Dir::Etc::sourcelist=$folder/sources.list" -o "Dir::State::lists=$folder/lists")
    apt update
    packages=("${packages[@]/%incus-base/incus-base/$release-backports}")
    packages=("${packages[@]/%incus-client/incus-client/$release-backports}")
}

if ! compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null; then
    apt update
fi
if [ -n "$backports" ] && ! candidate "$backports" >/dev/null; then
    add_backports
fi
if ! install_packages; then
    # The lists may be older than what the mirrors still have.
    apt update
    install_packages
fi

echo "setup: installed ${packages[*]}; their system services were not started" >&2
