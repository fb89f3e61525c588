#!/usr/bin/env bash
# Shows the story so far on a throw-away world: every command is printed, then really run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
world=$(mktemp -d)
trap 'rm -rf -- "$world"' EXIT
export ESCROW_HOME="$world/state" PATH="${CARGO_TARGET_DIR:-$root/target}/debug:$PATH"
cd "$world"

if [[ -t 1 && -z "${NO_COLOR:-}" ]]; then bold=$'\e[1m' faint=$'\e[2m' plain=$'\e[0m'; else bold='' faint='' plain=''; fi
tell() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
run() {
	printf '%s$ %s%s\n' "$faint" "$1" "$plain"
	bash -c "$1"
}

mkdir -p app/src
printf 'fn main() {\n    println!("hello");\n}\n' > app/src/main.rs
printf '# App\n' > app/README.md
printf '#!/bin/sh\necho build\n' > app/build.sh
for i in $(seq 2000); do printf 'asset %s\n' "$i" > "app/src/asset-$i"; done

tell "A real directory. An agent is going to work on it, but not for real yet."
run "ls app && find app -type f | wc -l"

tell "A plan gives it a sandbox. Nothing is copied: it takes as long for ten files as for ten million."
run "escrow plan create try --resource ./app"

tell "The agent works inside."
run "printf 'fn main() {\n    println!(\"hello, world\");\n}\n' | escrow write try app src/main.rs"
run "echo 'made by an agent' | escrow write try app docs/notes.txt"
run "escrow read try app README.md | escrow write try app README.md   # the same bytes again"

tell "One diff shows everything it did. The file written with its own bytes is not a change."
run "escrow diff try"
run "escrow diff try --patch"

tell "The original has not changed by a byte."
run "cat app/src/main.rs; ls app"

tell "Other tools can work inside too, in a sandbox that is a full copy."
run "escrow plan create copy --resource ./app --strategy filesystem_copy"
run "cd \"\$(escrow path copy app)\" && rm -r src && mkdir src && chmod +x build.sh && ln -s build.sh make"
run "escrow diff copy | head -n 5"
run "escrow diff copy --json | tail -n 10"

tell "Nobody wants that. Discard it; the sandbox can be worked in again."
run "escrow rollback copy && escrow diff copy"

tell "A path cannot climb out, whatever it is called."
run "escrow read try app ../state/state.db || echo \"refused with status \$?\""

tell "What works on this machine, and why the rest does not."
run "escrow doctor app"

tell "Clean up: nothing stays behind."
run "escrow cleanup try && escrow cleanup copy && ls -A \"\$ESCROW_HOME/sandboxes\" | wc -l"
printf '\n%sThat is the story so far.%s Next: README.md, or escrow --help.\n' "$bold" "$plain"
