//! Running things: as the test user, in an overlay, under strace, by the command line, and not at all.

use escrow_testkit::signature::Kind;
use escrow_testkit::strace::{Spec, count_syscalls};
use escrow_testkit::user::{as_user, is_rerun, rerun_test_as_user};

use crate::*;

#[test]
fn the_test_user_is_ordinary() {
    need!(require_root("setpriv"));
    let output = as_user("sh")
        .args(["-c", "id -u; id -G; ls /root"])
        .output()
        .expect("setpriv starts");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("{UID}\n{UID}\n")
    );
    assert!(!output.status.success());
}

#[test]
fn a_rerun_that_runs_nothing_or_fails_is_noticed() {
    assert!(!is_rerun() || !is_root());
    need!(require_root("setpriv"));
    let panic = std::panic::catch_unwind(|| rerun_test_as_user("there_is_no_such_test"));
    assert!(panic.is_err());
}

fn check_overlay(world: &World, xattr: XattrKind) {
    let [lower, upper, work] = ["lower", "upper, layer", "work:\\"].map(|name| world.dir(name));
    tree::build(&lower, "keep \"k\"\ngone \"g\"\nsub/a \"a\"\nsub/b \"b\"");
    let mount = OverlayMount {
        lower: &lower,
        upper: &upper,
        work: &work,
        xattr,
    };
    let copy = world.at("copy");
    let script = "rm gone; echo n > new; rm -rf sub; mkdir sub; echo c > sub/c; cat keep";
    assert_eq!(mount.run(script).stdout, b"k");
    mount.snapshot_merged_to(&copy);
    assert_eq!(
        tree::render(&copy),
        "keep \"k\"\nnew \"n\\n\"\nsub/\nsub/c \"c\\n\"\n"
    );
    assert_eq!(
        tree::render(&lower),
        "gone \"g\"\nkeep \"k\"\nsub/\nsub/a \"a\"\nsub/b \"b\"\n"
    );
    let sig = signature(&upper);
    assert_eq!(
        (sig[&b"gone"[..]].kind, sig[&b"gone"[..]].rdev),
        (Kind::CharDevice, (0, 0))
    );
    let opaque: &[u8] = match xattr {
        XattrKind::User => b"user.overlay.opaque",
        XattrKind::Trusted => b"trusted.overlay.opaque",
    };
    assert_eq!(
        sig[&b"sub"[..]].xattrs.get(opaque).map(Vec::as_slice),
        Some(&b"y"[..])
    );
}

#[test]
fn overlays_are_real_for_the_user_who_runs_the_test() {
    rerun_as_user(&[]);
    for world in [World::new(), World::odd()] {
        check_overlay(&world, XattrKind::User);
    }
}

#[test]
fn overlays_with_the_marks_of_root_are_real() {
    need!(require_root("trusted.overlay.*"));
    for world in [World::new(), World::odd()] {
        check_overlay(&world, XattrKind::Trusted);
    }
}

#[test]
fn strace_sees_opens_and_touches_across_children() {
    rerun_as_user(&[]);
    for world in [World::new(), World::odd()] {
        tree::build(world.path(), "seen/a \"a\"\nseen/b \"b\"\nunseen/c \"c\"");
        let seen = world.at("seen");
        let script = "cat seen/a; ls seen; (cd seen; cat b; cat missing; true)";
        let spec = Spec::new("sh")
            .args(["-c", script])
            .cwd(world.path())
            .env("LC_ALL", "C");
        let counts = count_syscalls(&spec);
        assert_eq!(counts.output.stdout, b"aa\nb\nb");
        let opens = counts.file_opens_below(&seen);
        assert_eq!(opens.len(), 2, "{opens:#?}\n{:#?}", counts.lines);
        assert_eq!(counts.file_opens_below(&world.at("unseen")), [""; 0]);
        assert_eq!(counts.touching(&world.at("unseen")), 0);
        assert_eq!(counts.touching(&world.at("see")), 0);
        assert!(counts.touching(&seen) >= 5, "{}", counts.touching(&seen));
        assert_eq!(counts.total, counts.by_name.values().sum::<usize>());
        assert!(counts.count("execve") >= 4);
    }
}

#[test]
fn the_command_line_runs_hermetically() {
    rerun_as_user(&[]);
    let world = World::odd();
    let cli = Cli::new(&world, Path::new("/bin/sh"));
    for cli in [cli.clone(), cli.clone().user()] {
        let names = cli.ok(["-c", "env | sed 's/=.*//' | sort | tr '\\n' ' '"]);
        let words: Vec<&str> = names
            .split_whitespace()
            .filter(|name| *name != "LLVM_PROFILE_FILE")
            .collect();
        assert_eq!(
            words.join(" "),
            "ESCROW_HOME HOME LC_ALL PATH PWD TMPDIR TZ"
        );
        cli.ok(["-c", "touch \"$ESCROW_HOME/x\" \"$TMPDIR/x\" \"$HOME/x\"; rm \"$ESCROW_HOME/x\" \"$TMPDIR/x\" \"$HOME/x\""]);
        assert_eq!(cli.clone().stdin("to cat").ok(["-c", "cat"]), "to cat");
        assert_eq!(cli.fails(["-c", "echo why >&2; exit 7"], 7), "why\n");
        assert_eq!(cli.run(["-c", "kill -9 $$"]).status, -9);
        assert_eq!(cli.run_in("/usr", ["-c", "pwd"]).stdout, b"/usr\n");
        assert!(cli.trace(["-c", "true"]).count("execve") >= 1);
    }
    assert_ne!(cli.user().ok(["-c", "id -u"]), "0\n");
    assert!(
        std::panic::catch_unwind(|| Cli::new(&world, Path::new("/bin/sh")).ok(["-c", "exit 3"]))
            .is_err()
    );
}

/// Started by the next test, which looks at it from outside.
#[test]
fn skips_when_told_to() {
    if std::env::var_os("ESCROW_TESTKIT_SKIP").is_some() {
        skip("told to");
    }
}

// rule T2
#[test]
fn a_skip_is_seen_counted_and_a_failure_in_ci() {
    let world = World::new();
    let log = world.at("log");
    let run = |ci: &str| {
        Command::new(std::env::current_exe().expect("a test knows itself"))
            .args(["--exact", "running::skips_when_told_to", "--test-threads=2"])
            .env("ESCROW_TESTKIT_SKIP", "1")
            .env("ESCROW_SKIP_LOG", &log)
            .env("CI", ci)
            .output()
            .expect("the test binary starts")
    };
    let line = "SKIPPED: running::skips_when_told_to: told to\n";
    let output = run("");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), line);
    assert!(!run("true").status.success());
    assert_eq!(read(&log), line.repeat(2));
}
