#!/usr/bin/env bash
# Runs other projects' tests of file systems twice, in a plain directory and inside `escrow run` in a sandbox of one, and writes the
# checks that end differently into docs/limits.md. Not part of `make test`: the tests are in other projects' sources alone.
#
#     scripts/conformance-posix.sh SUITES
#
# SUITES, outside of /tmp and /var/tmp (which are private inside), has some of: pjdfstest/ (a checkout in which `pjdfstest` is built), and the
# programs fsx and fsstress. pjdfstest is made for root. STRATEGY says which sandbox (overlay), KEEP where the outputs stay.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

suites=$(cd "${1:?a directory with pjdfstest/, fsx or fsstress}" && pwd)
escrow=${ESCROW:-$PWD/target/release/escrow}
strategy=${STRATEGY:-overlay}
world=$(mktemp -d "$PWD/target/posix.XXXXXX")
trap 'rm -rf "$world"' EXIT
mkdir "$world/native" "$world/inside" "$world/project"
export ESCROW_HOME=$world/home

# One line for each check: its name, and how it ended.
cat >"$world/checks.sh" <<'CHECKS'
suites=$1
mkdir work && cd work
if [ -x "$suites/pjdfstest/pjdfstest" ]; then
    for test in "$suites"/pjdfstest/tests/*/*.t; do
        name=${test#"$suites/pjdfstest/tests/"}
        sh "$test" 2>/dev/null | awk -v name="$name" '
            $1 == "ok" { print "pjdfstest " name " " $2 ": ok" }
            $1 == "not" { print "pjdfstest " name " " $3 ": failed" }'
    done
fi
for seed in 1 2 3; do
    if [ -x "$suites/fsx" ]; then
        "$suites/fsx" -N 5000 -S $seed "fsx-$seed" >&2 && end=ok || end=failed
        echo "fsx seed $seed: $end"
    fi
    if [ -x "$suites/fsstress" ]; then
        mkdir "stress-$seed"
        "$suites/fsstress" -d "stress-$seed" -n 1000 -p 2 -s $seed >&2 && end=ok || end=failed
        echo "fsstress seed $seed: $end"
    fi
done
CHECKS

# No command inside makes device nodes: natively neither, or that alone fills the list.
without=()
[[ $EUID -eq 0 ]] && without=(setpriv --bounding-set=-mknod --inh-caps=-mknod --)
echo "native …"
(cd "$world/native" && "${without[@]}" sh "$world/checks.sh" "$suites" >"$world/native.txt" 2>"$world/native.err")
echo "inside …"
(cd "$world/project" && "$escrow" run -q -r . --strategy "$strategy" --writable "$world/inside" -- \
    sh -c 'sh "$1/checks.sh" "$2" >"$1/inside/checks.txt" 2>"$1/inside/err"' checks "$world" "$suites")
mv "$world/inside/checks.txt" "$world/inside.txt"
if [[ -n ${KEEP:-} ]]; then
    cp "$world"/native.* "$world/inside.txt" "$world/inside/err" "$KEEP"
fi
[[ -s $world/native.txt ]] || { echo "no check ran: '$suites' has neither pjdfstest/pjdfstest nor fsx nor fsstress" >&2; exit 1; }

# What ends otherwise inside, by test: how many checks, and how.
awk -F': ' 'NR == FNR { inside[$1] = $2; next }
    inside[$1] != $2 { split($1, name, " "); how[name[1] " " name[2] ": " (inside[$1] == "" ? "did not run" : inside[$1])]++ }
    END { for (one in how) print "  " one " (" how[one] ")" }' "$world/inside.txt" "$world/native.txt" | sort >"$world/differences"
who=$([[ $EUID -eq 0 ]] && echo root || echo "an ordinary user")
{
    echo "<!-- posix: begin, written by make conformance-posix -->"
    echo "- As $who, in a sandbox by \`$strategy\`, of $(wc -l <"$world/native.txt") checks ($(cut -d' ' -f1 "$world/native.txt" | sort | uniq -c |
        awk '{ printf "%s%s %s", sep, $2, $1; sep = ", " }')) these end otherwise than in a plain directory, without device nodes there too:"
    cat "$world/differences"
    echo "<!-- posix: end -->"
} >"$world/list"
cat "$world/list"
awk -v list="$world/list" '
    /<!-- posix: begin/ { while ((getline line < list) > 0) print line; skip = 1 }
    !skip { print }
    /<!-- posix: end/ { skip = 0 }' docs/limits.md >"$world/limits.md"
cat "$world/limits.md" >docs/limits.md
