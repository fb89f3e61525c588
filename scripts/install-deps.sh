#!/usr/bin/env bash
# Checks for everything the build and the tests use. As root with apt-get, installs what is missing;
# otherwise says what to install and fails. Does nothing when nothing is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# mkfs.*, losetup and setcap live where an ordinary user's PATH may not look.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
# Debian keeps the programs of the PostgreSQL server in a directory of their own.
for directory in /usr/lib/postgresql/*/bin; do
    PATH="$PATH:$directory"
done

# command:Debian packages that bring it, separated by commas
needs=(
    cc:gcc,libc6-dev
    git:git
    strace:strace
    mkfs.ext4:e2fsprogs
    mkfs.xfs:xfsprogs
    mkfs.btrfs:btrfs-progs
    setfacl:acl
    setfattr:attr
    setpriv:util-linux
    unshare:util-linux
    ip:iproute2
    mount:mount
    losetup:mount
    patch:patch
    make:make
    tmux:tmux
    setcap:libcap2-bin
    newgidmap:uidmap
    python3:python3
    curl:curl
    openssl:openssl
    bwrap:bubblewrap
    node:nodejs
    npm:npm
    vim:vim
    podman:podman
    sqlite3:sqlite3
    sqldiff:sqlite3-tools
    initdb:postgresql
    postgres:postgresql
    pgbench:postgresql
    psql:postgresql-client
    pg_dump:postgresql-client
    openssl:openssl
)

# module of the system's own Python:Debian package that brings it
modules=(
    django:python3-django
    psycopg:python3-psycopg
    psycopg2:python3-psycopg2
    asyncpg:python3-asyncpg
    sqlalchemy:python3-sqlalchemy
    greenlet:python3-greenlet
    pygit2:python3-pygit2
    ensurepip:python3-venv
    pip:python3-pip
    pytest:python3-pytest
)

# packages of PyPI for the S3 server of the tests, and for libraries that read git repositories, in an environment of their own where Python does not
# have them
s3_python=target/s3-python
s3_packages=("boto3>=1.36,<2" "moto[s3]>=5.1,<6" flask flask-cors "gitoxide>=0.4,<0.5"
    "gitpython>=3.1,<4" "dulwich>=0.22,<2")
has_s3() {
    "$1" -c 'import boto3, moto.moto_server.werkzeug_app, gitoxide, git, dulwich' 2>/dev/null
}

# Sets `missing` (commands) and `packages` (what to install for them).
look() {
    missing=()
    packages=()
    local need command package
    for need in "${needs[@]}"; do
        command=${need%%:*}
        if ! command -v "$command" >/dev/null; then
            missing+=("$command")
            for package in $(tr ',' ' ' <<<"${need#*:}"); do
                if [[ " ${packages[*]} " != *" $package "* ]]; then
                    packages+=("$package")
                fi
            done
        fi
    done
    for need in "${modules[@]}"; do
        if ! /usr/bin/python3 -c "import ${need%%:*}" 2>/dev/null; then
            missing+=("python module ${need%%:*}")
            packages+=("${need#*:}")
        fi
    done
}

fail() {
    printf 'install-deps: %s\n' "$@" >&2
    exit 1
}

look
if [[ ${#missing[@]} -gt 0 ]]; then
    if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
        fail "missing: ${missing[*]}" "install these Debian packages, or what your system calls them: ${packages[*]}"
    fi
    echo "install-deps: missing: ${missing[*]}; installing: ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install --yes --no-install-recommends "${packages[@]}"
    look
    if [[ ${#missing[@]} -gt 0 ]]; then
        fail "still missing after the installation: ${missing[*]}"
    fi
fi

if ! has_s3 python3 && ! has_s3 "$s3_python/bin/python3"; then
    if [[ $EUID -ne 0 ]]; then
        fail "missing for the tests: the packages ${s3_packages[*]} of Python; install them with pip"
    fi
    echo "install-deps: installing into $s3_python: ${s3_packages[*]}"
    /usr/bin/python3 -m venv "$s3_python"
    "$s3_python/bin/pip" install --quiet --disable-pip-version-check --no-compile "${s3_packages[@]}"
    has_s3 "$s3_python/bin/python3" || fail "they cannot be loaded after the installation"
fi

# The version the workspace asks for, so that it is written down once.
wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
    fail "cargo is missing: install Rust $wanted or newer with rustup (https://rustup.rs)"
fi
found=$(rustc --version | awk '{ print $2 }')
# The older of the two must be the wanted one. `-dev`, `-nightly` and the like do not count.
if [[ $(printf '%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1) != "$wanted" ]]; then
    fail "Rust $found is too old: $wanted or newer is needed (rustup update stable)"
fi
