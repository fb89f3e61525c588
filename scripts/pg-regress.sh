#!/usr/bin/env bash
# Runs PostgreSQL's own regression tests twice, on a server of its own and in the held transaction of a sandbox there, and compares what
# psql prints. Not part of `make test`: the tests are in PostgreSQL's sources alone (`apt-get source postgresql-15`), in src/test/regress.
#
#     scripts/pg-regress.sh SOURCES/src/test/regress [TEST…]
#
# KEEP names a directory for the outputs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

regress=$(cd "${1:?the directory src/test/regress of the sources of PostgreSQL}" && pwd)
shift
escrow=${ESCROW:-$PWD/target/release/escrow}
for directory in /usr/lib/postgresql/*/bin; do
    PATH="$PATH:$directory"
done

world=$(mktemp -d /tmp/pg-regress.XXXXXX)
server=
finish() {
    if [[ -n $server ]]; then
        kill -QUIT "$server"
        wait "$server" || test $? -gt 128
    fi
    rm -rf "$world"
}
trap finish EXIT

# A server takes no root.
ordinary=()
mkdir "$world/pg"
if [[ $EUID -eq 0 ]]; then
    ordinary=(setpriv --reuid=65534 --regid=65534 --clear-groups --)
    chmod 755 "$world"
    chown 65534:65534 "$world/pg"
fi
(cd "$world/pg" && "${ordinary[@]}" initdb -N -A trust -U postgres -E UTF8 --locale=C -D "$world/pg/data" >/dev/null)
(cd "$world/pg" && exec "${ordinary[@]}" postgres -D "$world/pg/data" -k "$world/pg" -c listen_addresses= -c fsync=off \
    -c max_prepared_transactions=2 -c max_locks_per_transaction=1024 2>"$world/pg/log") &
server=$!

export PGHOST=$world/pg PGUSER=postgres PGTZ=PST8PDT PGDATESTYLE='Postgres, MDY' ESCROW_HOME=$world/home
export PGOPTIONS='-c intervalstyle=postgres_verbose' PG_ABS_SRCDIR=$regress PG_LIBDIR=$regress PG_DLSUFFIX=.so
until psql -d postgres -c 'SELECT 1' >/dev/null 2>&1; do sleep 0.1; done

tests=("$@")
if [[ ${#tests[@]} -eq 0 ]]; then
    read -ra tests <<<"$(sed -n 's/^test: //p' "$regress/parallel_schedule" | tr '\n' ' ')"
fi
# One database for each, alike: what the tests begin with is made outside of the sandbox.
for database in direct held; do
    psql -d postgres -qc "CREATE DATABASE $database"
    psql -XAtq -d "$database" <"$regress/sql/test_setup.sql" >/dev/null 2>&1
done
run() { # DATABASE NAME
    mkdir -p "$world/$2"
    for name in "${tests[@]}"; do
        [[ $name == test_setup ]] && continue
        (cd "$regress" && timeout 300 psql -Xaq -d "$1" <"sql/$name.sql") >"$world/$2/$name" 2>&1 || echo "psql ended with $?" >>"$world/$2/$name"
    done
}
run direct on-server
"$escrow" plan create regress --resource "postgresql:///held?host=$PGHOST&user=postgres" >/dev/null 2>&1
run "$("$escrow" path regress held)" in-sandbox
"$escrow" cleanup --yes regress >/dev/null

same=0 others=0
for output in "$world"/on-server/*; do
    name=${output##*/}
    if cmp -s "$output" "$world/in-sandbox/$name"; then
        same=$((same + 1))
        continue
    fi
    others=$((others + 1))
    echo "== $name"
    (diff "$output" "$world/in-sandbox/$name" || test $? -eq 1) | sed -n 's/^> \(ERROR: .*\)/\1/p' | sort | uniq -c | sort -rn
done
if [[ -n ${KEEP:-} ]]; then
    cp -r "$world/on-server" "$world/in-sandbox" "$KEEP"
fi
echo "$same of $((same + others)) tests print the same in the sandbox as on the server"
