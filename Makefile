# The commands of the house. Each recipe is one bash script that stops at the first failure.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help demo day test lint bench torture regress conformance-posix agents deps docs install

# mkfs.* and losetup live where an ordinary user's PATH may not look.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

SKIPPED := $(CURDIR)/target/skipped.txt
TEST_LOG := $(CURDIR)/target/test.log

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(if $(BINARY),,release) ## into PREFIX (/usr/local), below DESTDIR: the program, manual pages, completions
	@binary='$(or $(BINARY),target/release/escrow)'
	to='$(DESTDIR)$(or $(PREFIX),/usr/local)'
	install -D -m 755 "$$binary" "$$to/bin/escrow"
	mkdir -p "$$to/share/man/man1"
	sed -n 's/^## escrow//p' docs/cli-reference.md | while read -r words; do
		# Each word is a command of the one before.
		"$$binary" man $$words > "$$to/share/man/man1/escrow$${words:+-$${words// /-}}.1"
	done
	while read -r shell file; do
		mkdir -p "$$to/share/$${file%/*}"
		"$$binary" completions "$$shell" > "$$to/share/$$file"
	done <<-END
		bash bash-completion/completions/escrow
		zsh zsh/site-functions/_escrow
		fish fish/vendor_completions.d/escrow.fish
	END
	echo "installed into $$to"

release:
	@cargo build --release --locked -p escrow-cli

demo: ## build, then show the story so far on a throw-away world
	@cargo build --quiet --locked -p escrow-cli
	scripts/demo.sh

day: ## build, then live a day with it on a throw-away project: every hint that is printed is typed
	@cargo build --quiet --locked -p escrow-cli
	scripts/day.sh

test: deps ## install what the tests need, run them all, list what was skipped
	@mkdir -p target
	rm -f '$(SKIPPED)' '$(TEST_LOG)'
	export ESCROW_SKIP_LOG='$(SKIPPED)'
	what=(--workspace --locked --features escrow-cli/seeded-bugs)
	if cargo nextest --version >/dev/null 2>&1; then
		# All suites from one queue, the longest first. Tests wait for disks and processes a quarter of their time.
		cargo nextest run "$${what[@]}" --test-threads $$(($$(nproc) * 5 / 2)) 2>&1 | tee '$(TEST_LOG)'
		cargo test "$${what[@]}" --doc | tee -a '$(TEST_LOG)'
	else
		echo "cargo-nextest is not installed: the suites run one after the other"
		cargo test "$${what[@]}" | tee '$(TEST_LOG)'
	fi
	passed=$$(awk '/^test result: ok\./ { n += $$4 } /^ *Summary \[/ { sub(/.*run: /, ""); n += $$1 } END { print n + 0 }' '$(TEST_LOG)')
	if [[ $$passed -eq 0 ]]; then
		echo "make test: FAILED: no test ran" >&2
		exit 1
	fi
	skipped=0
	if [[ -s '$(SKIPPED)' ]]; then
		skipped=$$(wc -l < '$(SKIPPED)')
		echo
		echo "$$skipped skipped:"
		sed 's/^/  /' '$(SKIPPED)'
		if [[ "$${CI:-}" == true ]]; then
			echo "make test: FAILED: in CI a skipped test is a failure" >&2
			exit 1
		fi
	else
		echo
		echo "No test was skipped."
	fi
	echo "make test: passed: $$passed tests, $$skipped skipped"

lint: ## formatting, clippy, rustdoc, dependencies, shell syntax; any warning fails
	@cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --features escrow-cli/seeded-bugs -- -D warnings
	cargo clippy --workspace --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	if command -v cargo-deny >/dev/null; then
		cargo deny check
	else
		echo "cargo-deny is not installed: licences, bans and advisories were not checked"
	fi
	for script in scripts/*.sh scripts/agents/*.sh .ci/run; do
		bash -n "$$script"
	done
	echo "make lint: passed"

bench: ## measure whole operations, in release mode
	@cargo run --release --locked -p escrow-bench

torture: deps ## every fault at every call, for ESCROW_TORTURE_MINUTES (30), in release mode; write docs/reliability.md
	@ESCROW_TORTURE=long cargo test --release --locked -p escrow-cli --features seeded-bugs --test torture -- \
		--exact report::the_long_form --nocapture

regress: ## PostgreSQL's own tests, of its sources (SOURCES=…/src/test/regress), in a sandbox beside on a server
	@cargo build --release --locked -p escrow-cli
	scripts/pg-regress.sh '$(SOURCES)'

conformance-posix: ## other projects' tests of file systems (SUITES=…: pjdfstest/, fsx, fsstress), inside beside natively; write the differences into docs/limits.md
	@cargo build --release --locked -p escrow-cli
	scripts/conformance-posix.sh '$(SUITES)'

agents: ## fetch real coding agents, and let a scripted model drive them in Escrow (ARGS='--agent claude --scenario plant'); packages come from their registries
	@if [[ -z "$${ESCROW_BIN:-}" ]]; then
		cargo build --quiet --locked -p escrow-cli
	fi
	scripts/agents/fetch.sh
	scripts/agents/scenarios.py $(ARGS)

deps: ## check for the programs the tests use; as root, install the missing ones
	@scripts/install-deps.sh

docs: ## write the generated docs again (the tests compare them)
	@ESCROW_BLESS=1 cargo test --locked -p escrow-cli --test cli reference
