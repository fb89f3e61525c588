#!/usr/bin/env bash
# A day with Escrow on a throw-away project: every command is printed and really run, and every hint that is printed is typed.
# Ends with 1 where a step does not end as it should, or where a hint was never typed or failed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
world=$(mktemp -d "${DAY_WORLD:-/var/tmp}/escrow-day-XXXXXX")
trap 'rm -rf -- "$world"' EXIT
export ESCROW_HOME="$world/state" HOME="$world/home" PATH="${CARGO_TARGET_DIR:-$root/target}/debug:$PATH" NO_COLOR=1
export GIT_CONFIG_GLOBAL="$world/home/.gitconfig" GIT_CONFIG_SYSTEM=/dev/null
mkdir -p "$world/home" "$world/app/src"
cd "$world/app"

out='' steps=0
# Hints that were not typed yet: those of one printed line stand for each other.
owed=()

fail() {
	printf 'day: FAILED: %s\n' "$*" >&2
	exit 1
}

# Notes what was typed: the lines that offered it are settled.
typed() {
	local line left=()
	for line in "${owed[@]}"; do
		[[ "$line" == *"|$1|"* ]] || left+=("$line")
	done
	owed=("${left[@]}")
}

# The hints in what was printed, by line; what only looks is typed at once, and so is what can be tried.
hints() {
	local line hint group
	while IFS= read -r line; do
		group='|'
		while [[ "$line" =~ \`(escrow\ [^\`]+)\`(.*) ]]; do
			hint=${BASH_REMATCH[1]} line=${BASH_REMATCH[2]}
			# Words in capitals stand for what the reader puts there.
			[[ "$hint" =~ (^|[\ /])[A-Z]{2,} ]] || group+="$hint|"
		done
		[[ "$group" == '|' ]] || owed+=("$group")
	done <<< "$1"
	for line in "${owed[@]}"; do
		IFS='|' read -ra group <<< "$line"
		for hint in "${group[@]}"; do
			case "$hint" in
				'escrow diff'* | 'escrow status'* | 'escrow log'* | 'escrow plan list'* | 'escrow checkpoint list'* | 'escrow read'*) try "$hint" "$hint" ;;
				'escrow commit'* | 'escrow undo'* | 'escrow gc'*) try "$hint" "$hint --dry-run" ;;
			esac
		done
	done
}

# Types a hint, as it is or so that nothing changes: a conflict is an answer, a mistake is none.
try() {
	local status=0 said
	said=$(bash -c "$2" 2>&1 < /dev/null) || status=$?
	[[ $status -eq 0 || $status -eq 4 ]] || fail "the hint \`$1\` ends with $status: $said"
	typed "$1"
}

# step STATUS COMMAND [WORDS…]: runs a command, which ends with this status and prints these words.
step() {
	local wanted=$1 command=$2 status=0 word
	shift 2
	printf '$ %s\n' "$command"
	out=$(bash -c "$command" 2>&1 < /dev/null) || status=$?
	printf '%s\n' "$out"
	[[ $status -eq $wanted ]] || fail "'$command' ended with $status instead of $wanted"
	for word in "$@"; do
		[[ "$out" == *"$word"* ]] || fail "'$command' does not say '$word'"
	done
	typed "$command"
	hints "$out"
	steps=$((steps + 1))
}

# holds FILE TEXT: the original holds this.
holds() {
	[[ "$(cat "$1" 2> /dev/null)" == "$2" ]] || fail "$1 holds '$(cat "$1" 2>&1)', not '$2'"
}

git config --global user.name Day
git config --global user.email day@example.org
git config --global init.defaultBranch main
printf '__pycache__/\n*.log\n' > .gitignore
printf 'a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n' > src/m.py
printf '# App\n' > README.md
git init -q . && git add -A && git commit -qm first

step 0 'escrow init'
git add -A
git diff --cached --quiet || git commit -qm 'settings of escrow'

# Three runs of an agent in one plan.
step 0 "escrow run -- sh -c 'sed -i s/a.=.1/a\ =\ 10/ src/m.py; mkdir -p src/__pycache__; echo c > src/__pycache__/m.pyc'" '1 modified'
step 0 "escrow run -- sh -c 'echo notes > NOTES.md'" 'this run: 1 added' 'the plan:'
step 0 "escrow run -- sh -c 'echo more >> NOTES.md; echo log > run.log'" 'this run:' 'the plan:'
holds README.md '# App'
step 0 'escrow diff' 'src/m.py' 'NOTES.md' 'ignored by git'
step 0 'escrow status' 'app'

# A part first, then the rest, which conflicts with the user's own edit.
step 0 'escrow commit --only NOTES.md' 'committed'
holds NOTES.md $'notes\nmore'
printf 'a = 1\nb = 2\nc = 3\nd = 4\ne = 50\n' > src/m.py
step 0 'escrow diff' 'changed on both sides'
step 4 'escrow commit app' 'changed'
step 0 'escrow commit app --on-conflict merge' 'committed'
holds src/m.py $'a = 10\nb = 2\nc = 3\nd = 4\ne = 50'

# The tests fail: back, with a cache and a log that they left behind.
mkdir -p src/__pycache__ && echo changed > src/__pycache__/m.pyc && echo new > src/__pycache__/n.pyc && echo longer >> run.log
step 0 'escrow undo app' 'undid' 'open again'
holds src/m.py $'a = 1\nb = 2\nc = 3\nd = 4\ne = 50'
step 0 'escrow diff app' 'src/m.py'
step 0 'escrow commit app' 'committed'
holds src/m.py $'a = 10\nb = 2\nc = 3\nd = 4\ne = 50'

# A run that is not wanted, and wanted after all.
step 0 "escrow run -- sh -c 'echo worse > README.md'" '1 modified'
[[ "$out" =~ escrow\ rollback\ ([^\`]+) ]] && plan=${BASH_REMATCH[1]}
step 0 "escrow rollback $plan" 'discarded'
step 0 'escrow undo' 'undid the rollback'
step 0 "escrow diff $plan" 'README.md'
step 0 "escrow rollback $plan" 'discarded'

# Two plans: nothing is guessed. A fork tries another way, and both are compared.
step 0 "escrow plan create one --resource ."
step 0 "escrow run --plan one -- sh -c 'echo one > src/one.py'"
step 0 'escrow checkpoint create one -m first'
[[ "$out" =~ \`(escrow\ restore\ [^\`]+) ]] && back=${BASH_REMATCH[1]}
step 0 "escrow run --plan one -- rm src/one.py" 'no changes'
step 0 "$back" 'restored'
step 0 'escrow plan fork one two'
step 0 "escrow run --plan two -- sh -c 'echo two > src/one.py'"
step 2 'escrow commit' 'one' 'two'
step 0 'escrow diff two --against one' 'src/one.py'
step 0 'escrow commit two' 'committed'
holds src/one.py two
step 0 'escrow cleanup one --yes'

# At the end nothing is left but what can still be undone; then nothing at all.
step 0 'escrow gc' 'undo'
step 0 'escrow log'
step 0 'escrow gc --older-than 0s'
[[ -z "$(ls -A "$ESCROW_HOME/sandboxes" 2> /dev/null)" ]] || fail "left: $(ls -A "$ESCROW_HOME/sandboxes")"
[[ ${#owed[@]} -eq 0 ]] || fail "never typed: ${owed[*]}"
printf 'day: %s steps, and every hint that was printed\n' "$steps"
