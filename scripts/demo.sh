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

tell "Run anything inside. It sees its files where they always are, and changes nothing real."
run "cd app && escrow run -- sh -c 'sed -i s/hello/hello,\\ world/ src/main.rs; mkdir docs; echo made by an agent > docs/notes.txt; rm build.sh; touch /usr/intruder; ls'"

tell "The original has not changed by a byte. One diff shows everything that was done."
run "ls app; cat app/src/main.rs"
run "escrow diff app --patch"

tell "Commit the changes, look, and take them back."
run "escrow commit app -m 'a friendlier greeting' && cat app/src/main.rs && ls app"
run "escrow undo app && cat app/src/main.rs && ls app"

if command -v sqlite3 > /dev/null; then
	shop=shop
	tell "An application and its database. The command changes both with its ordinary tools."
	mkdir -p shop/data
	printf 'vat = 19\n' > shop/settings
	sqlite3 shop/data/shop.db "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, status TEXT);
		INSERT INTO orders VALUES (1, 'saw', 'new'), (2, 'axe', 'new'), (3, 'file', 'new')"
	run "cd shop && escrow init"
	run "cd shop && escrow run -- sh -c 'echo vat = 21 > settings; sqlite3 data/shop.db \"UPDATE orders SET status = \\\"paid\\\" WHERE id = 2; DELETE FROM orders WHERE id = 3\"'"
	tell "Meanwhile the application goes on. Files by their text, rows by their columns: one diff, one commit, one undo."
	run "sqlite3 shop/data/shop.db \"UPDATE orders SET item = 'big axe' WHERE id = 2\""
	run "escrow diff shop"
	run "escrow commit shop && cat shop/settings && sqlite3 shop/data/shop.db 'SELECT * FROM orders'"
	run "escrow undo shop && cat shop/settings && sqlite3 shop/data/shop.db 'SELECT * FROM orders'"
fi

tell "Two directories, one plan: a thousand files in each, all changed in their sandboxes."
mkdir site api
for i in $(seq 1000); do echo old > "site/page-$i"; echo old > "api/route-$i"; done
run "escrow plan create move --resource ./site --resource ./api --strategy filesystem_copy"
for name in site api; do
	sandbox=$(escrow path move "$name")
	for file in "$sandbox"/*; do echo new > "$file"; done
done
run "escrow diff move --json | grep -c '\"path\"'"

tell "Commit both as one, and kill it with SIGKILL while it is at it."
printf '%s$ escrow commit move & … kill -9 $!%s\n' "$faint" "$plain"
escrow commit move > /dev/null 2>&1 &
commit=$!
# As soon as the first file of the original is new, the commit is in the middle of its renames.
until grep -q new site/page-1 2> /dev/null || ! kill -0 "$commit" 2> /dev/null; do :; done
if kill -9 "$commit" 2> /dev/null; then echo "killed"; else echo "it was quicker"; fi
wait "$commit" 2> /dev/null || echo "its exit status: $?"
run "cat site/* api/* | sort | uniq -c"
run "escrow status"

tell "Half way is nowhere to stay. Recover, and everything is on one side."
run "escrow recover"
run "cat site/* api/* | sort | uniq -c"
run "escrow undo move && cat site/* api/* | sort | uniq -c"

tell "Somebody edits the original where the agent does too: nothing is overwritten by accident."
run "escrow plan create clash --resource ./site && echo agent | escrow write clash site page-7"
run "echo mine > site/page-7; escrow commit clash || echo \"refused with status \$?\""
run "escrow commit clash --on-conflict original; cat site/page-7"

tell "A path cannot climb out, whatever it is called."
run "escrow plan create out --resource ./app; escrow read out app ../state/state.db || echo \"refused with status \$?\""

tell "What works on this machine, and why the rest does not."
run "escrow doctor app"

tell "Everything that was done is on record. Clean up: nothing stays behind."
run "escrow log | tail -n 5"
run "for plan in app ${shop-} move clash out; do escrow cleanup \$plan; done; ls -A \"\$ESCROW_HOME/sandboxes\" | wc -l"
printf '\n%sThat is the story so far.%s Next: README.md, or escrow --help.\n' "$bold" "$plain"
