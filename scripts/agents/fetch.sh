#!/usr/bin/env bash
# Fetches the real clients from their registries into target/agents (or AGENTS), each at the version that scenarios.py was
# last run with. What is there already stays. A newer version is tried by a change of the table.
#
#     scripts/agents/fetch.sh [AGENT…]
#
# The directory must not lie in /tmp or /var/tmp, which are private inside. Aider needs Python 3.12: AIDER_PYTHON, else the
# first of python3.12 and those of pyenv that runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# agent, version, package, what is started
table='
claude    2.1.328  @anthropic-ai/claude-code-linux-x64  claude
codex     0.169.0  @openai/codex                        vendor/x86_64-unknown-linux-musl/bin/codex
opencode  1.18.33  opencode-linux-x64-baseline          bin/opencode
gemini    0.61.0   @google/gemini-cli                   bundle/gemini.js
aider     0.86.2   aider-chat                           aider
'

agents=${AGENTS:-$PWD/target/agents}
mkdir -p "$agents/bin"
agents=$(cd "$agents" && pwd -P)
case $agents/ in
/tmp/* | /var/tmp/*)
	echo "fetch.sh: '$agents' would be hidden inside: set AGENTS to a directory that is not in /tmp or /var/tmp" >&2
	exit 1
	;;
esac

npm_package() { # agent version package
	local tag=$2
	[[ $1 == codex ]] && tag=$2-linux-x64
	(cd "$agents/$1.new" && npm pack --silent "$3@$tag" >/dev/null && tar xzf ./*.tgz --strip-components=1 && rm ./*.tgz)
}

# A Python of a home directory is seen neither by an ordinary user nor inside, so its whole prefix is copied.
python_package() { # agent version package
	local python='' prefix='' candidate
	for candidate in "${AIDER_PYTHON:-}" python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python3.12; do
		# A name may be there and lead nowhere, as those of pyenv do.
		if [[ -n $candidate ]] && prefix=$("$candidate" -c 'import sys; print(sys.base_prefix)' 2>/dev/null); then
			python=$candidate
			break
		fi
	done
	[[ -n $python ]] || { echo "fetch.sh: aider needs Python 3.12: set AIDER_PYTHON" >&2; return 1; }
	if [[ $prefix != /usr ]]; then
		cp -a "$prefix" "$agents/$1.new/python"
		python=$agents/$1/python/bin/python3.12
	fi
	# A venv has its own path inside, so it is made at its last place.
	mv "$agents/$1.new" "$agents/$1"
	"$python" -m venv "$agents/$1/venv"
	"$agents/$1/venv/bin/pip" install --quiet --disable-pip-version-check "$3==$2"
	# The copied Python looks for its library where it was built.
	printf '#!/bin/sh\nexport LD_LIBRARY_PATH="%s"\nexec "%s" "%s" "$@"\n' \
		"$agents/$1/python/lib" "$agents/$1/venv/bin/python" "$agents/$1/venv/bin/aider" >"$agents/$1/aider"
}

wanted=("$@")
while read -r agent version package program; do
	[[ -n $agent ]] || continue
	if [[ ${#wanted[@]} -gt 0 && " ${wanted[*]} " != *" $agent "* ]]; then
		continue
	fi
	if [[ -f $agents/$agent.version && $(<"$agents/$agent.version") == "$version" ]]; then
		echo "$agent $version: there"
		continue
	fi
	echo "$agent $version: fetching $package"
	rm -rf "${agents:?}/$agent" "$agents/$agent.new" "$agents/$agent.version"
	mkdir "$agents/$agent.new"
	case $agent in
	aider) python_package "$agent" "$version" "$package" ;;
	*)
		npm_package "$agent" "$version" "$package"
		mv "$agents/$agent.new" "$agents/$agent"
		;;
	esac
	if [[ $agent == gemini ]]; then
		# Node may lie in a home directory too.
		install -m 755 "$(readlink -f "$(command -v node)")" "$agents/bin/node"
	fi
	chmod 755 "$agents/$agent/$program"
	ln -sfn "../$agent/$program" "$agents/bin/$agent"
	echo "$version" >"$agents/$agent.version"
done <<<"$table"
