//! The usual work of programs gives inside what it gives outside, and the original waits for the commit.
//!
//! Each test works in a sandbox and, natively, in a plain copy of the original; and compares everything.

use escrow_testkit::signature::{Content, Entry, Kind};

use crate::*;

/// What is done, and to what.
pub(crate) struct Work<'a> {
    /// Makes the original, in an empty directory.
    pub(crate) before: &'a str,
    /// The work.
    pub(crate) script: &'a str,
    /// Files whose bytes say when and where they were written.
    pub(crate) unlike: &'a [&'a str],
    /// Says what must hold where the work was done.
    pub(crate) check: &'a str,
    /// The kinds of sandboxes.
    pub(crate) strategies: &'a [&'a str],
}

impl Default for Work<'_> {
    fn default() -> Self {
        Self {
            before: "",
            script: "",
            unlike: &[],
            check: "",
            strategies: &STRATEGIES,
        }
    }
}

pub(crate) const NO_TIMES: Ignore = Ignore {
    times: true,
    owners: false,
    hole_map: true,
    special: false,
};

/// Does plain work, after which `check` must hold.
pub(crate) fn works(before: &str, script: &str, check: &str) {
    compare(&Work {
        before,
        script,
        check,
        ..Work::default()
    });
}

/// Does the work in a sandbox of each kind and in a plain copy.
pub(crate) fn compare(work: &Work<'_>) {
    as_user_too();
    for strategy in work.strategies {
        in_one(World::under(Path::new("/var/tmp")), strategy, work);
    }
}

fn in_one(world: World, strategy: &str, work: &Work<'_>) {
    let app = world.dir("app");
    sh(&app, work.before);
    sh(world.path(), "cp -a app twin");
    let twin = world.at("twin");
    let cli = Cli::new(&world, &binary());
    cli.plan("try", "./app", strategy);
    let before = signature(&app);
    let mut line = words("run --plan try -- sh -eu -c");
    line.push(work.script.into());
    cli.clone().cwd(&app).ok(line);
    assert_quiet(&world);
    unchanged(&before, &app);
    natively(&cli, &twin, work.script);
    let after = signature(&twin);
    let expected = name_status(&before, &after);
    assert_ne!(expected, "", "{}", work.script);
    let found = cli.ok("diff try --name-status");
    assert_eq!(found, expected, "{strategy}: {}", work.script);
    cli.ok("commit try");
    assert_quiet(&world);
    let but = |mut all: Sig| {
        for path in work.unlike {
            let entry = all.get_mut(path.as_bytes()).expect("it is there");
            (entry.content, entry.size) = (None, 0);
        }
        all
    };
    assert_same(&but(after), &but(signature(&app)), &NO_TIMES);
    for dir in [&app, &twin] {
        sh(dir, work.check);
    }
    cli.ok("undo try");
    unchanged(&before, &app);
    cli.ok("cleanup try");
    assert_clean(&world);
}

/// The same script outside, with the environment that the command has inside.
fn natively(cli: &Cli, dir: &Path, script: &str) {
    let mut command = cli.behind(&["sh", "-euc", script], "");
    command.env_remove("ESCROW_HOME").current_dir(dir);
    output_of(&mut command);
}

/// What `--name-status` must say of two trees, found by other means.
fn name_status(before: &Sig, after: &Sig) -> String {
    let mut lines = String::new();
    let mut paths: Vec<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        let letter = match (before.get(path), after.get(path)) {
            (None, _) => 'A',
            (_, None) => 'D',
            (Some(old), Some(new)) => match letter(old, new) {
                Some(letter) => letter,
                None => continue,
            },
        };
        let path = match path.is_empty() {
            true => ".",
            false => std::str::from_utf8(path).expect("these tests have plain names"),
        };
        lines.push_str(&format!("{letter}\t{path}\n"));
    }
    lines
}

fn letter(old: &Entry, new: &Entry) -> Option<char> {
    let bytes = |entry: &Entry| match (entry.kind, entry.content) {
        (Kind::File, Some(Content::Digest(digest))) => Some((digest, entry.size)),
        _ => None,
    };
    let rest = |entry: &Entry| (entry.mode, entry.uid, entry.gid, entry.xattrs.clone());
    if old.kind != new.kind {
        Some('T')
    } else if bytes(old) != bytes(new) || old.target != new.target {
        Some('M')
    } else if rest(old) != rest(new) {
        Some('P')
    } else {
        None
    }
}

#[test]
fn a_program_is_built() {
    let before = r#"
        mkdir src include
        printf '#define GREETING "hello"\n' > include/greet.h
        printf '#include <stdio.h>\n#include "greet.h"\nint greet(void) { return puts(GREETING) < 0; }\n' > src/greet.c
        printf 'int greet(void);\nint main(void) { return greet(); }\n' > src/main.c
        printf 'CFLAGS = -O1 -Iinclude\nhello: src/main.o src/greet.o\n\t$(CC) -o $@ $^\nsrc/greet.o: include/greet.h\nclean:\n\trm -f hello src/*.o\n' > Makefile
        make --quiet
    "#;
    let script = r#"
        sed -i s/hello/goodbye/ include/greet.h
        make --quiet hello
        test "$(./hello)" = goodbye
        cp hello hello.keep
        make --quiet clean
    "#;
    let check = "test \"$(./hello.keep)\" = goodbye; test ! -e hello";
    works(before, script, check);
}

/// What is written as it was before is no change, but has the time of that: nothing is left to build in the original.
#[test]
fn a_released_tree_is_built() {
    let before = r#"
        printf 'out: in\n\tcp in out\nlog: out\n\techo built > log\n' > Makefile
        echo same > in; echo same > out; touch -d 2020-01-01 out; touch -d 2020-01-02 in
    "#;
    works(before, "make log; test out -nt in", "make -q log");
}

/// Cargo goes by the times of files, and renames directories.
#[test]
fn cargo_builds_and_finds_nothing_to_do_after_the_commit() {
    let (world, cli) = world();
    let app = world.at("app");
    let script = r#"
        rm -r src; mkdir -p src dep/src; echo 'pub fn one() -> u8 { 1 }' > dep/src/lib.rs
        printf '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\ndep = { path = "dep" }\n' > Cargo.toml
        printf '[package]\nname = "dep"\nversion = "0.1.0"\nedition = "2021"\n' > dep/Cargo.toml
        echo 'fn main() { assert_eq!(dep::one(), 1) }' > src/main.rs
    "#;
    sh(&app, script);
    let home = std::env::var("HOME").expect("the test has one");
    let own = |name: &str, dir: &str| std::env::var(name).unwrap_or(format!("{home}/{dir}"));
    let cli = cli
        .env("CARGO_HOME", own("CARGO_HOME", ".cargo"))
        .env("RUSTUP_HOME", own("RUSTUP_HOME", ".rustup"));
    let build = "cargo build --offline -v";
    cli.ok(inside(
        "run --commit",
        &format!("{build} && mv dep lib && mv lib dep && touch src/main.rs && {build}"),
    ));
    let again = cli.behind(&["sh", "-c", build], "").output();
    let again = again.expect("there is a shell");
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(
        again.status.success() && !said.contains("Compiling"),
        "{said}"
    );
    assert_eq!(said.matches("Fresh").count(), 2, "{said}");
    assert_quiet(&world);
}

/// A local package is installed and used.
#[test]
fn npm_installs_inside_as_outside() {
    let before = r#"
        mkdir package; echo '{"name": "dep", "version": "1.0.0"}' > package/package.json
        echo 'module.exports = 1' > package/index.js; tar -czf dep.tgz package; rm -r package
        echo '{"name": "app", "version": "1.0.0"}' > package.json
    "#;
    let script = r#"
        npm install --offline --silent --no-audit --no-fund --no-update-notifier ./dep.tgz
        mv node_modules/dep node_modules/other; mv node_modules/other node_modules/dep
    "#;
    compare(&Work {
        before,
        script,
        check: "node -e 'process.exit(require(\"dep\") - 1)'",
        strategies: &["overlay"],
        ..Work::default()
    });
}

/// A wheel is installed, and its test passes.
#[test]
fn pip_installs_and_pytest_passes_inside_as_outside() {
    let before = r#"
        /usr/bin/python3 -c 'import zipfile; wheel = zipfile.ZipFile("dep-1.0-py3-none-any.whl", "w")
        info = "dep-1.0.dist-info/"
        wheel.writestr("dep.py", "one = 1\n"); wheel.writestr(info + "RECORD", "")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: dep\nVersion: 1.0\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")'
        printf 'import dep\ndef test_one():\n    assert dep.one == 1\n' > test_dep.py
    "#
    .replace("\n        ", "\n");
    let script = "/usr/bin/python3 -m pip install -q --no-index --no-compile --target=lib ./dep-1.0-py3-none-any.whl
        PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=lib /usr/bin/python3 -m pytest -q -p no:cacheprovider test_dep.py";
    compare(&Work {
        before: &before,
        script,
        // They name the directory.
        unlike: &[
            "lib/dep-1.0.dist-info/RECORD",
            "lib/dep-1.0.dist-info/direct_url.json",
        ],
        strategies: &["overlay"],
        ..Work::default()
    });
}

/// Both have terminals of their own.
#[test]
fn vim_edits_in_tmux_inside_as_outside() {
    let script = r#"
        export TERM=xterm; socket=$(mktemp -u /tmp/tmux.XXXXXXXX)
        edit="vim -N -u NONE -i NONE -n -c '%s/one/three/' -c 'wq' a.txt; tmux -S $socket wait-for -S over"
        tmux -S "$socket" -f /dev/null new-session -d "$edit" \; set -g exit-empty off
        tmux -S "$socket" wait-for over; tmux -S "$socket" kill-server
    "#;
    works(
        "printf 'one\\ntwo\\n' > a.txt",
        script,
        "grep -q three a.txt",
    );
}

/// A package with a user of its own, into sandboxes of the machine's directories.
#[test]
fn root_installs_a_package() {
    need!(require_root("directories of the machine"));
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        skip("dpkg is not installed");
        return;
    }
    let (world, cli) = furnish(World::under(Path::new("/opt")));
    let package = r#"
        mkdir -p p/DEBIAN p/usr/bin p/etc/escrow-test; echo set > p/etc/escrow-test/settings
        printf '#!/bin/sh\necho it works\n' > p/usr/bin/escrow-test; chmod 0755 p/usr/bin/escrow-test
        printf 'Package: escrow-test\nVersion: 1.0\nArchitecture: all\nMaintainer: A <a@b.c>\nDescription: x\n' > p/DEBIAN/control
        printf '#!/bin/sh\nset -e\nuseradd -r escrow-test\nchown escrow-test /etc/escrow-test/settings\n' > p/DEBIAN/postinst
        chmod 0755 p/DEBIAN/postinst; dpkg-deb --root-owner-group -b p test.deb > /dev/null
    "#;
    sh(world.path(), package);
    let script =
        "dpkg -i ../test.deb > /dev/null; escrow-test; stat -c %U /etc/escrow-test/settings";
    let line = inside("run -r /etc -r /usr -r /var --strategy overlay", script);
    let said = cli.ok(line);
    assert_eq!(said, "it works\nescrow-test\n");
    let names = cli.ok("diff --name-only");
    has(
        &names,
        [
            "escrow-test/settings",
            "passwd",
            "bin/escrow-test",
            "lib/dpkg/status",
        ],
    );
    cli.ok("rollback");
    assert!(!Path::new("/usr/bin/escrow-test").exists());
    assert_quiet(&world);
}

#[test]
fn a_checkout_gets_commits() {
    let before = r#"
        export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE='@1000000000 +0000' GIT_COMMITTER_DATE='@1000000000 +0000'
        git init -q -b main .
        git config user.name Ann; git config user.email ann@example.org; git config gc.auto 0
        mkdir doc; echo one > doc/a; echo two > b
        git add .; git commit -q -m first
    "#;
    let script = r#"
        export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE='@1100000000 +0000' GIT_COMMITTER_DATE='@1100000000 +0000'
        git checkout -q -b topic
        git mv doc/a doc/c; echo more >> b
        git commit -q -a -m second
        git checkout -q main; git merge -q --no-ff -m third topic
        git branch -q -d topic
        git init -q -b main sub
        cd sub
        git config user.name Ann; git config user.email ann@example.org
        echo x > x; git add x; git commit -q -m sub
    "#;
    let work = Work {
        before,
        script,
        // They hold the numbers and times of inodes.
        unlike: &[".git/index", "sub/.git/index"],
        // Looking must not refresh the index, which undo would notice.
        check: "export GIT_OPTIONAL_LOCKS=0; git fsck --strict; git -C sub fsck --strict
            test \"$(git status --porcelain)\" = '?? sub/'; test -z \"$(git -C sub status --porcelain)\"",
        ..Work::default()
    };
    compare(&work);
}

#[test]
fn a_database_is_changed() {
    if Command::new("sqlite3").arg("-version").output().is_err() {
        skip("sqlite3 is not installed");
        return;
    }
    let before = r#"
        sqlite3 shop.db 'PRAGMA page_size=1024; CREATE TABLE goods(id INTEGER PRIMARY KEY, name TEXT, n INT);
            WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<3000)
            INSERT INTO goods SELECT x, printf("thing %d", x), x % 7 FROM c;'
    "#;
    let script = r#"
        sqlite3 shop.db 'BEGIN; UPDATE goods SET n = n + 1 WHERE id % 3 = 0; DELETE FROM goods WHERE id > 2500;
            CREATE INDEX by_name ON goods(name); COMMIT;
            BEGIN; DELETE FROM goods; ROLLBACK;'
        sqlite3 shop.db 'VACUUM'
        sqlite3 log.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(x); INSERT INTO t VALUES(1);' > /dev/null
    "#;
    let check = r#"
        test "$(sqlite3 shop.db 'PRAGMA integrity_check')" = ok
        test "$(sqlite3 shop.db 'SELECT count(*) FROM goods')" = 2500
    "#;
    works(before, script, check);
}

#[test]
fn an_archive_is_packed_and_unpacked() {
    let before = "mkdir -p a/b/c; for n in 1 2 3 4 5; do echo $n > a/b/$n; ln -s ../$n a/b/c/l$n; done; chmod 0705 a/b/c";
    let script = r#"
        tar --sort=name --mtime=@99 --owner=0 --group=0 --numeric-owner -czf all.tgz a
        rm -r a/b
        mkdir out
        tar -C out --no-same-owner -xzf all.tgz
        mv out/a/b a/
        tar --no-same-owner -xzf all.tgz a/b/3
        truncate -s 1M out/hole; echo end >> out/hole
        tar -cSf - -C out hole | tar -xSf - -C a
    "#;
    works(before, script, "");
}

#[test]
fn half_a_tree_is_removed() {
    let before = r#"
        for d in 0 1 2 3 4 5 6 7 8 9; do
            mkdir -p d$d/sub/deep
            for f in 0 1 2 3 4 5 6 7 8 9; do echo $d$f > d$d/f$f; echo $f > d$d/sub/deep/f$f; done
        done
    "#;
    let script = r#"
        rm -rf d[02468]
        find d1 d3 -type f -name 'f[13579]' -delete
        rm -rf d5/sub; mkdir d5/sub; echo new > d5/sub/f0
        rm -rf d7; echo now a file > d7
        rm d9/f1; mkdir d9/f1; rm d9/f2; ln -s f3 d9/f2
    "#;
    works(before, script, "");
}

#[test]
fn a_package_manager_replaces_thousands_of_files() {
    let before = r#"
        mkdir -p node_modules
        i=0; while [ $i -lt 50 ]; do
            mkdir -p node_modules/p$i/lib
            j=0; while [ $j -lt 20 ]; do echo "old $i" > node_modules/p$i/lib/$j.js; j=$((j+1)); done
            i=$((i+1))
        done
    "#;
    let script = r#"
        rm -rf node_modules.new; mkdir node_modules.new
        i=0; while [ $i -lt 100 ]; do
            mkdir -p node_modules.new/p$i/lib
            j=0; while [ $j -lt 20 ]; do echo "old $((i % 51))" > node_modules.new/p$i/lib/$j.js; j=$((j+1)); done
            i=$((i+1))
        done
        rm -rf node_modules
        mv node_modules.new node_modules
        rm -rf node_modules/p[0-9]
        rm -rf node_modules/p7*/lib/*5.js
    "#;
    works(before, script, "");
}

#[test]
fn directories_are_renamed() {
    let before = r#"
        mkdir -p a/b/c x/y; echo 1 > a/b/c/1; echo 2 > a/2; echo 3 > x/y/3; chmod 0711 a/b
        ln -s ../2 a/b/up
    "#;
    let script = r#"
        mv a z
        mv z/b/c z/c
        mkdir a; echo again > a/2
        mv x/y x/w; mv x/w x/y; echo more >> x/y/3
        mkdir n; mv x n/; mv n/x/y n/y
        mv z/2 z/two; ln z/two z/b/two
    "#;
    works(before, script, "");
}

/// The kernel refuses these in a layer, and not every program copies then.
#[test]
fn programs_rename_directories_of_the_original() {
    let before = r#"
        mkdir -p a/b/c a/b/closed a/e x/y old; echo 1 > a/b/c/1; echo 2 > a/2; echo 3 > x/y/3
        mkfifo a/b/pipe; ln -s ../2 a/b/up; chmod 0711 a/b; echo 4 > a/b/closed/4; chmod 0555 a/b/closed
        setfattr -n user.kept -v yes a/b; touch -d 2020-02-02 a/b/c a/b a/e
        git init -q .; git add a x
        git -c user.name=A -c user.email=a@b.c commit -qm one
    "#;
    let script = r#"
        git mv x/y x/z; time=$(stat -c %Y a/b/c)
        python3 - <<'END'
import ctypes, errno, os, threading
libc = ctypes.CDLL(None, use_errno=True)
def rename2(old, new, flags):
    done = libc.renameat2(-100, old.encode(), -100, new.encode(), flags)
    return 0 if done == 0 else ctypes.get_errno()
# Onto an empty directory, by descriptors, and with a slash at the end.
os.mkdir("empty")
os.rename("a/b", "empty")
here = os.open("empty", os.O_RDONLY)
os.rename("c/", "c2/", src_dir_fd=here, dst_dir_fd=here)
# What must be refused is refused as ever.
assert rename2("x", "old", 1) == errno.EEXIST
assert rename2("x", "x/z/in", 0) == errno.EINVAL
assert rename2("x", "empty", 0) == errno.ENOTEMPTY
assert rename2("gone", "other", 0) == errno.ENOENT
# Two are exchanged; then several threads rename at once.
assert rename2("x", "a/e", 2) == 0
threads = [threading.Thread(target=os.rename, args=(f"{d}", f"{d}.new")) for d in ("x", "old", "a")]
[one.start() for one in threads]; [one.join() for one in threads]
END
        test "$(stat -c %Y empty/c2)" = "$time"
        git add -A
        node -e 'require("fs").renameSync("a.new", "b")'
        rm empty/pipe
    "#;
    compare(&Work {
        before,
        script,
        unlike: &[".git/index"],
        check: "test -f b/e/z/3; getfattr -n user.kept empty; git fsck",
        ..Work::default()
    });
}

/// A checkpoint sees a directory before or after it was renamed, and so does what is left when everything is killed.
#[test]
fn a_rename_of_a_directory_is_whole_for_checkpoints_and_nothing_is_lost_by_a_kill() {
    as_user_too();
    let (world, cli) = world();
    sh(
        world.at("app"),
        "for d in $(seq 30); do mkdir d$d; for f in $(seq 20); do echo $d.$f > d$d/$f; done; done",
    );
    cli.plan("try", ".", "overlay");
    let rename = r#"python3 -c 'import os,sys
print("ready", flush=True)
for d in range(1, 31): os.rename(f"d{d}", f"r{d}")
print("done", flush=True)
sys.stdin.read()'"#;
    let command = Running::ready(cli.command(in_try(rename)));
    for name in ["one", "two", "three"] {
        cli.ok(format!("checkpoint create try -m {name}"));
    }
    assert_eq!(command.line(), "done");
    assert_eq!(command.finish().status, 0);
    let whole = "for d in $(seq 30); do set -- d$d r$d; test -d d$d || shift; test $(ls $1 | wc -l) = 20; done
        test $(ls -A | wc -l) = $(ls -A | grep -cx '[dr][0-9]*\\|a.txt\\|src\\|link')";
    for name in ["three", "two", "one"] {
        cli.ok(format!("restore try {name}"));
        cli.ok(in_try(&format!("set -eu; {whole}")));
    }
    cli.ok(in_try(
        "for d in r*; do test ! -d $d || mv $d d${d#r}; done",
    ));
    let mut command = Running::ready(cli.command(in_try(rename)));
    command.signal(rustix::process::Signal::KILL);
    command.gone();
    assert_soon_quiet(&world);
    let left = cli.ok(in_try("find . -name '[0-9]*' -type f | wc -l"));
    assert_eq!(left.trim(), "600");
}

/// A command that ends while a directory is moved for it leaves the directory whole; one that is half moved is never released.
#[test]
fn a_rename_that_is_cut_off_is_taken_back_and_half_of_it_is_never_committed() {
    as_user_too();
    let (world, cli) = world();
    sh(world.at("app"), "mkdir big; cd big; seq 3000 | xargs touch");
    cli.plan("try", ".", "overlay");
    for _ in 0..3 {
        // It ends as soon as the rename has begun.
        let script = "python3 -c 'import os; os.rename(\"big\", \"other\")' & for i in $(seq 4000); do \
            set -- .escrow-rename-*; if test -e \"$1\"; then exit; fi; done; kill $!";
        cli.run(in_try(script));
        let whole = "ls -A; test -d big || mv other big; ls big | wc -l";
        let said = cli.ok(in_try(whole));
        assert!(
            said.ends_with("3000\n") && !said.contains(".escrow"),
            "{said}"
        );
    }
    cli.ok(in_try(
        "mkdir .escrow-rename-1-2; echo half > .escrow-rename-1-2/f",
    ));
    let said = cli.fails("commit try", 3);
    assert!(said.contains("whose rename was cut off"), "{said}");
}

// rule F3
#[test]
fn hard_links_are_made() {
    let before = "mkdir d; echo one > d/one; echo solo > solo; echo gone > gone";
    let script = r#"
        ln d/one two; ln two d/three; echo more >> d/one
        ln solo other; rm solo
        ln gone gone2; rm gone gone2
        echo new > n1; ln n1 n2; ln n1 d/n3; chmod 0600 n2
        ln -s d/one s; ln s s2
    "#;
    works(before, script, "");
}

// rule F3
#[test]
fn what_is_linked_in_the_original_is_changed_under_all_its_names() {
    let before = "mkdir d; echo one > one; ln one two; ln one d/three; echo x > x; ln x y";
    let script = "echo more >> two; test \"$(cat one)\" = \"$(cat two)\"; chmod 0604 d/three; rm x";
    let work = Work {
        before,
        script,
        // In a layer the kernel parts such names at the first write; see the next test.
        strategies: &["filesystem_copy"],
        ..Work::default()
    };
    compare(&work);
}

/// The kernel shows a name of its own for a file that was changed in a layer. That is what the command saw, so it is
/// what the diff says and the commit gives.
#[test]
fn what_a_layer_shows_of_linked_files_is_what_is_committed() {
    as_user_too();
    let world = World::under(Path::new("/var/tmp"));
    let (app, seen) = (world.dir("app"), world.dir("seen"));
    let before = "mkdir d; echo one > one; ln one two; ln one d/three; echo x > x; ln x y";
    sh(&app, before);
    let cli = Cli::new(&world, &binary());
    cli.ok("plan create try --resource ./app --strategy overlay");
    let script = "echo more >> two; chmod 0604 d/three; rm x; cp -a . ../seen/";
    let line = [
        words("run --plan try --writable ../seen -- sh -eu -c"),
        vec![script.into()],
    ];
    cli.clone().cwd(&app).ok(line.concat());
    let expected = name_status(&signature(&app), &signature(&seen));
    assert_eq!(cli.ok("diff try --name-status"), expected);
    cli.ok("commit try");
    assert_same(&signature(&seen), &signature(&app), &NO_TIMES);
    assert_quiet(&world);
}

#[test]
fn memory_is_mapped_and_written() {
    let before = r#"
        head -c 100000 /dev/zero | tr '\0' 'o' > old
        cat > map.c <<'END'
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int fd = open(argv[1], O_RDWR | O_CREAT, 0640);
    if (fd < 0 || ftruncate(fd, 100000)) return 1;
    char *at = mmap(0, 100000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return 2;
    close(fd);
    memset(at + 4000, 'm', 50000);
    if (argc > 2 && msync(at, 100000, MS_SYNC)) return 3;
    /* The rest is left to the kernel. */
    memset(at + 90000, 'e', 10000);
    return 0;
}
END
    "#;
    let script = "cc -o map map.c; ./map old sync; ./map new; rm map";
    let check =
        r#"test "$(tail -c 10001 old | tr -d e)" = o; test "$(tr -d '\0' < new | wc -c)" = 60000"#;
    works(before, script, check);
}

#[test]
fn processes_outlive_their_parents() {
    let before = "echo 0 > count; mkdir spool";
    // A daemon, as they make themselves: a parent that ends at once, a session of its own, no streams.
    let script = r#"
        (setsid sh -c 'for n in 1 2 3 4 5; do sleep 0.05; echo $n > spool/$n; done; echo done > spool/done' \
            </dev/null >/dev/null 2>&1 &)
        (sh -c '(sleep 0.1; echo orphan > orphan) &' &)
        while ! [ -s spool/done ] || ! [ -s orphan ]; do sleep 0.02; done
        echo 5 > count
    "#;
    works(before, script, "");
}

#[test]
fn attributes_and_modes_are_set() {
    let before =
        "mkdir d; echo a > a; echo b > b; chmod 0754 b; setfattr -n user.old -v 1 a; touch empty";
    let script = r#"
        setfattr -n user.new -v 2 a; setfattr -x user.old a
        setfattr -n user.dir -v 3 d
        chmod 0751 .; chmod 0500 d; chmod u-w b
        setfacl -m u:$(id -u):r,m::rw empty
        touch -d @77 b; cat a > /dev/null
        mkfifo pipe; umask 077; mkdir tight; : > tight/file
    "#;
    works(before, script, "");
}

// The kernel closes the directories that it works in to everyone, and leaves them.
#[test]
fn the_state_could_not_be_removed_by_its_owner() {
    as_user_too();
    let (world, cli) = world();
    cli.ok(inside("run --new", "echo new > a.txt; echo mine > ~/mine"));
    sh(world.path(), "rm -rf -- escrow-home");
    assert!(!world.path().join("escrow-home").exists());
}
