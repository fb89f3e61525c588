//! The stepper counts every call that matters, of every process, and hits exactly the one it is reported to.

use std::io::{IoSlice, Write};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::*;

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

fn script(dir: &Path, text: &str) -> Stepper {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("umask 022; {text}")])
        .current_dir(dir);
    Stepper::new(command)
}

/// A part of this test binary, as a program of its own: what [`act`] knows by this name.
fn program(dir: &Path, name: &str) -> Stepper {
    let mut command = Command::new(std::env::current_exe().expect("a test knows itself"));
    command
        .args(["--exact", "stepper::acts_when_told_to", "--nocapture"])
        .env("ESCROW_TESTKIT_ACT", name)
        // Coverage of a killed program is not measured, and writing it would count.
        .env("LLVM_PROFILE_FILE", "/dev/null")
        .current_dir(dir);
    Stepper::new(command)
}

fn act(name: &str) {
    match name {
        "threads" => thread::scope(|scope| {
            for thread in 0..5 {
                scope.spawn(move || {
                    for number in 0..7 {
                        fs::create_dir(format!("{thread}-{number}")).expect("a directory");
                    }
                });
            }
        }),
        "vectors" => {
            let mut file = File::create("one").expect("a file");
            let count = file.write_vectored(&[IoSlice::new(b"0123456789")]);
            assert_eq!(count.expect("a write"), 10);
            let mut file = File::create("three").expect("a file");
            let parts = [&b"abc"[..], b"de", b"fghij"].map(IoSlice::new);
            assert_eq!(file.write_vectored(&parts).expect("a write"), 10);
        }
        "openat2" => {
            let open = |name: &str, flags: OFlags| {
                let makes = flags.intersects(OFlags::CREATE.union(OFlags::TMPFILE));
                let mode = if makes { Mode::RWXU } else { Mode::empty() };
                let here = rustix::fs::CWD;
                rustix::fs::openat2(here, name, flags, mode, ResolveFlags::BENEATH)
            };
            open(".", OFlags::PATH).expect("a directory");
            open("new", OFlags::CREATE | OFlags::WRONLY).expect("a new file");
            open("new", OFlags::WRONLY).expect("an old file");
            open("new", OFlags::TRUNC | OFlags::WRONLY).expect("an empty file");
            open(".", OFlags::TMPFILE | OFlags::WRONLY).expect("a nameless file");
        }
        _ => panic!("nothing is known of {name}"),
    }
}

/// Started by other tests, as a program.
#[test]
fn acts_when_told_to() {
    if let Ok(name) = std::env::var("ESCROW_TESTKIT_ACT") {
        act(&name);
    }
}

fn calls(run: &Run) -> Vec<&'static str> {
    run.steps.iter().map(|step| step.name).collect()
}

const SCRIPT: &str = "mkdir a; echo one > a/b; mv a c; (ln c/b c/d; chmod 600 c/d); rm c/b; \
                   cat c/d | cat > e; rm -r c";
/// What is there before each of the calls of [`SCRIPT`], and at the end.
const STAGES: [&str; 12] = [
    "",
    "a/\n",
    "a/\na/b\n",
    "a/\na/b \"one\\n\"\n",
    "c/\nc/b \"one\\n\"\n",
    "c/\nc/b \"one\\n\"\nc/d = c/b\n",
    "c/\nc/b 0600 \"one\\n\"\nc/d = c/b\n",
    "c/\nc/d 0600 \"one\\n\"\n",
    "c/\nc/d 0600 \"one\\n\"\ne\n",
    "c/\nc/d 0600 \"one\\n\"\ne \"one\\n\"\n",
    "c/\ne \"one\\n\"\n",
    "e \"one\\n\"\n",
];

#[test]
fn calls_are_counted_across_children_and_always_the_same() {
    rerun_as_user(&[]);
    need!(require_stepper());
    for _ in 0..5 {
        let world = World::odd();
        let run = script(world.path(), SCRIPT).record().run();
        assert_eq!(run.outcome.status, 0, "{run:?}");
        assert_eq!(run.calls, 11, "{run:#?}");
        assert!(run.hit.is_none());
        let at = |name: &str| Some(world.at(name));
        let [made, wrote, renamed] = [0, 2, 3].map(|place: usize| &run.steps[place]);
        assert_eq!((made.name, &made.path), ("mkdir", &at("a")));
        assert_eq!((wrote.name, &wrote.path), ("write", &at("a/b")));
        assert_eq!((&renamed.path, &renamed.to), (&at("a"), &at("c")));
        let (from, to) = (world.at("a"), world.at("c"));
        let shown = format!("{} {} -> {}", renamed.name, from.display(), to.display());
        assert_eq!(renamed.to_string(), shown);
        let file = fs::metadata(world.at("e")).expect("a file");
        assert_eq!(run.steps[8].file, Some((file.dev(), file.ino())));
    }
}

#[test]
fn a_kill_leaves_exactly_what_came_before() {
    rerun_as_user(&[]);
    need!(require_stepper());
    for (n, stage) in (1..).zip(STAGES) {
        let world = World::new();
        let run = script(world.path(), SCRIPT).fault(n, Fault::Kill);
        assert_eq!(tree::render(world.path()), stage, "{n}: {run:?}");
        assert_eq!(run.hit.is_some(), n < 12);
        assert_eq!(run.outcome.status, if n < 12 { -9 } else { 0 });
        let world = World::new();
        script(world.path(), SCRIPT).stop_at(n, |pid| {
            assert_eq!(tree::render(world.path()), stage);
            assert!(Path::new(&format!("/proc/{pid}")).exists());
        });
        assert_eq!(tree::render(world.path()), stage);
    }
}

#[test]
fn threads_and_parallel_children_stand_still() {
    rerun_as_user(&[]);
    need!(require_stepper());
    let there = |world: &World| fs::read_dir(world.path()).expect("a directory").count();
    let parallel = "seq 35 | xargs -P 5 -n 1 mkdir";
    let all = World::new();
    assert_eq!(program(all.path(), "threads").run().calls, 35);
    for n in [1, 2, 11, 23, 35] {
        for processors in [false, true] {
            let worlds = [World::new(), World::new()];
            let steppers = [
                program(worlds[0].path(), "threads"),
                script(worlds[1].path(), parallel),
            ];
            for (stepper, world) in steppers.into_iter().zip(&worlds) {
                let stepper = if processors {
                    stepper.all_processors()
                } else {
                    stepper
                };
                let mut seen = 0;
                let run = stepper.stop_at(n, |_| {
                    seen = there(world);
                    thread::sleep(Duration::from_millis(5));
                    assert_eq!(there(world), seen);
                });
                assert_eq!(run.outcome.status, -9);
                assert_eq!(there(world), seen);
                assert_eq!(u64::try_from(seen).expect("a number"), n - 1, "{run:?}");
            }
        }
    }
}

#[test]
fn a_kill_reaches_all() {
    rerun_as_user(&[]);
    need!(require_stepper());
    let world = World::new();
    let text = "trap '' TERM HUP; (setsid sleep 1000 & echo $! > one); sleep 1000 & echo $! > two; \
                sleep 1000 | sleep 1000 & mkdir three";
    let started = Instant::now();
    let run = script(world.path(), text).fault(5, Fault::Kill);
    assert_eq!(run.hit.map(|step| step.name), Some("mkdir"));
    for name in ["one", "two"] {
        let pid = fs::read_to_string(world.at(name)).expect("a number");
        // Init may not have taken notice yet.
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }
    assert!(started.elapsed() < Duration::from_secs(1000));
}

#[test]
fn a_call_fails_once_or_from_then_on() {
    rerun_as_user(&[]);
    need!(require_stepper());
    let text = "mkdir a; mkdir b; mkdir c; echo done";
    let world = World::new();
    let run = script(world.path(), text).fault(2, Fault::Once(ENOSPC));
    assert_eq!(tree::render(world.path()), "a/\nc/\n");
    assert_eq!((run.calls, run.outcome.status), (3, 0));
    has(&run.outcome.stderr_text(), ["No space left on device"]);
    assert_eq!(run.outcome.stdout_text(), "done\n");
    let world = World::new();
    let run = script(world.path(), text).fault(2, Fault::Forever(ENOSPC));
    assert_eq!(tree::render(world.path()), "a/\n");
    assert_eq!((run.calls, run.outcome.status), (3, 0));
    assert_eq!(run.outcome.stderr_text().matches("No space").count(), 2);
    // Aimed at what a call is about; later ones fail whatever they are about.
    let aimed = || script(world.path(), text).about(|step| step.ends("/b"));
    let run = aimed().fault(1, Fault::Once(ENOSPC));
    assert_eq!(tree::render(world.path()), "a/\nc/\n");
    assert_eq!(run.hit.and_then(|step| step.path), Some(world.at("b")));
    let run = aimed().fault(2, Fault::Kill);
    assert_eq!((run.calls, run.hit), (1, None));
    let world = World::new();
    script(world.path(), text)
        .about(|step| step.ends("/b"))
        .fault(1, Fault::Forever(ENOSPC));
    assert_eq!(tree::render(world.path()), "a/\n");
}

#[test]
fn a_torn_write_is_half_there() {
    rerun_as_user(&[]);
    need!(require_stepper());
    let tear = |stepper: Stepper, n| {
        let run = stepper.fault(n, Fault::Tear);
        assert_eq!(run.outcome.status, -9);
        run.hit.expect("a call that was torn").name
    };
    let text = "printf 12345678901 > a; cp --reflink=never a b; mkdir c; mkdir d";
    let world = World::new();
    assert_eq!(tear(script(world.path(), text), 2), "write");
    assert_eq!(tree::render(world.path()), "a \"12345\"\n");
    let world = World::new();
    // Not every file system can copy a range; then cp writes.
    let name = tear(script(world.path(), text), 4);
    assert!(["copy_file_range", "write"].contains(&name), "{name}");
    assert_eq!(
        tree::render(world.path()),
        "a \"12345678901\"\nb \"12345\"\n"
    );
    let world = World::new();
    let steps = script(world.path(), text).record().run();
    let made = calls(&steps).iter().position(|name| *name == "mkdir");
    let made = u64::try_from(made.expect("a directory")).expect("a number") + 1;
    let world = World::new();
    assert_eq!(tear(script(world.path(), text), made), "mkdir");
    assert!(world.at("c").is_dir() && !world.at("d").exists());
    let world = World::new();
    assert_eq!(tear(program(world.path(), "vectors"), 2), "writev");
    assert_eq!(tree::render(world.path()), "one \"01234\"\n");
    assert_eq!(tear(program(world.path(), "vectors"), 4), "writev");
    assert_eq!(
        tree::render(world.path()),
        "one \"0123456789\"\nthree \"abcde\"\n"
    );
}

#[test]
fn opening_counts_when_it_changes_something() {
    rerun_as_user(&[]);
    need!(require_stepper());
    let world = World::new();
    let run = program(world.path(), "openat2").record().run();
    assert_eq!(run.outcome.status, 0, "{run:?}");
    assert_eq!(calls(&run), ["openat2"; 3], "{run:#?}");
    assert_eq!(run.steps[1].path, Some(world.at("new")));
    let run = script(
        world.path(),
        "echo a | cat; cat < new; echo b >&2; : >> new",
    )
    .record()
    .run();
    assert_eq!(calls(&run), ["openat"], "{run:#?}");
    assert_eq!(run.outcome.stdout_text(), "a\n");
    assert_eq!(run.outcome.stderr_text(), "b\n");
    // Whether or not blocks can be shared here.
    let run = script(world.path(), "cp --reflink=always new shared")
        .only(&["ioctl"])
        .run();
    assert_eq!(run.calls, 1);
}

#[test]
fn syncs_are_counted_alone_and_fail_alone() {
    rerun_as_user(&[]);
    need!(require_stepper());
    let world = World::new();
    let text = "mkdir a; echo x > a/f; sync a/f; sync -d a/f; sync -f a; echo $? > b";
    let run = script(world.path(), text).only(SYNCS).record().run();
    assert_eq!(calls(&run), ["fsync", "fdatasync", "syncfs"]);
    let file = fs::metadata(world.at("a/f")).expect("a file");
    assert_eq!(run.steps[0].file, Some((file.dev(), file.ino())));
    let world = World::new();
    let run = script(world.path(), text)
        .only(SYNCS)
        .fault(3, Fault::Once(EIO));
    assert_eq!(run.hit.map(|step| step.name), Some("syncfs"));
    assert_eq!(fs::read(world.at("b")).expect("a file"), b"1\n");
    let unknown = std::panic::catch_unwind(|| script(Path::new("/"), "").only(&["fsink"]).run());
    assert!(unknown.is_err());
}

#[test]
fn steppers_run_side_by_side_and_leave_other_children_alone() {
    rerun_as_user(&[]);
    need!(require_stepper());
    thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut other = Command::new("sh")
                    .args(["-c", &format!("exit {thread}")])
                    .spawn()
                    .expect("sh starts");
                for (n, stage) in (1..).zip(STAGES) {
                    let world = World::new();
                    script(world.path(), SCRIPT).fault(n, Fault::Kill);
                    assert_eq!(tree::render(world.path()), stage);
                }
                let status = other.wait().expect("a child of this thread's own");
                assert_eq!(status.code(), Some(thread));
            });
        }
    });
}

#[test]
fn the_command_line_can_be_stepped_as_another_user() {
    need!(require_stepper());
    let world = World::odd();
    let cli = Cli::new(&world, Path::new("/bin/sh"));
    for cli in [cli.clone(), cli.user()] {
        let stepper = || {
            cli.clone()
                .stdin("in")
                .stepper(["-c", "cat > $HOME/x; id -u"])
        };
        let run = stepper().record().run();
        assert_eq!(run.outcome.stdout_text(), cli.ok(["-c", "id -u"]));
        assert_eq!(calls(&run), ["openat", "write"]);
        stepper().fault(2, Fault::Tear);
        let home = world.dir("user-home");
        assert_eq!(tree::render(&home), "x \"i\"\n");
        fs::remove_file(home.join("x")).expect("a file");
    }
}

#[test]
fn streams_are_whole() {
    need!(require_stepper());
    let text = "cat; seq 100000 >&2; printf end";
    let input = "line\n".repeat(54321);
    let run = script(Path::new("/"), text).stdin(&input).run();
    assert_eq!(run.outcome.stdout_text(), input + "end");
    assert_eq!(run.outcome.stderr_text().lines().count(), 100_000);
    assert_eq!((run.calls, run.outcome.status), (0, 0));
    let run = script(Path::new("/"), "kill -TERM $$").run();
    assert_eq!(run.outcome.status, -15);
}

#[test]
fn what_hangs_or_cannot_start_is_named() {
    need!(require_stepper());
    let said = |stepper: Stepper| {
        let stepper = stepper.limit(Duration::from_millis(300));
        let panic = thread::spawn(|| stepper.run()).join();
        let panic = panic.expect_err("a run that cannot succeed");
        panic.downcast_ref::<String>().expect("a text").to_owned()
    };
    let text = said(script(Path::new("/"), "echo before >&2; sleep 1000"));
    for part in ["did not end", " sleep (in ", "calls: 0"] {
        assert!(text.contains(part), "{text}");
    }
    let text = said(Stepper::new(Command::new("/no/such/program")));
    assert!(text.contains("/no/such/program"), "{text}");
    assert!(text.contains("No such file or directory"), "{text}");
}
