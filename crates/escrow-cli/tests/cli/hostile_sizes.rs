//! What an agent makes without any disk and that looks endless: holes, directories thousands deep, thousands of tables. A review of it, a
//! commit and an undo take seconds.

use crate::sqlite::{planned, sql};
use crate::*;

/// Runs a line, which may use the processor for so many seconds and a stack of a MiB; it must succeed.
#[track_caller]
fn within(cli: &Cli, seconds: u32, line: &str) -> String {
    let limits = format!("ulimit -t {seconds}; ulimit -s 1024; exec \"$0\" \"$@\"");
    let mut command = cli.behind(&["sh", "-c", &limits], line);
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}: {}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A plan `try` of `app`, and the directory of its sandbox.
fn copied() -> (World, Cli, PathBuf) {
    let world = World::new();
    write(world.dir("app").join("a"), "x\n");
    let cli = Cli::new(&world, &binary());
    cli.ok("plan create try --resource app --strategy filesystem_copy");
    let inside = PathBuf::from(cli.ok("path try app").trim_end());
    (world, cli, inside)
}

/// 64 GiB of hole took 100 s to compare, and 16 TiB hours.
// rule C11, F3
#[test]
fn a_hole_stopped_the_review() {
    let (world, cli, inside) = copied();
    let large = File::create(inside.join("hole")).expect("it is new");
    large.set_len(6 << 40).expect("it grows");
    let grown = File::options().write(true).open(inside.join("a"));
    grown
        .and_then(|file| file.set_len(6 << 40))
        .expect("it grows");
    for line in ["diff try", "diff try --patch", "diff try --stat", "status"] {
        within(&cli, 20, line);
    }
    let digest = json(&cli, "diff try")["digest"].as_str().map(str::to_owned);
    let digest = digest.expect("it covers everything");
    within(&cli, 20, "checkpoint create try -m one");
    within(&cli, 20, &format!("commit try --expect {digest}"));
    let committed = fs::metadata(world.at("app/hole")).expect("it is there");
    assert_eq!((committed.len(), committed.blocks()), (6 << 40, 0));
    within(&cli, 20, "undo try");
    assert_eq!(read(world.at("app/a")), "x\n");
    within(&cli, 20, "rollback try");
}

/// 3,000 directories in each other took a minute and a half, and their undo ended with an overflow of the stack.
// rule C11, F5
#[test]
fn directories_that_lie_deep_in_each_other_stopped_the_review() {
    let (world, cli, inside) = copied();
    let make = "import os, sys\nos.chdir(sys.argv[1])\nfor n in range(800): os.mkdir('d'); os.chdir('d')\nopen('f', 'w').write('deep')";
    output_of(Command::new("python3").args(["-c", make]).arg(&inside));
    within(&cli, 20, "diff try");
    within(&cli, 20, "checkpoint create try -m one");
    within(&cli, 30, "commit try");
    assert!(world.at("app/d/d/d").is_dir());
    within(&cli, 30, "undo try");
    assert!(!world.at("app/d").exists());
    let inside = PathBuf::from(cli.ok("path try app").trim_end());
    assert!(inside.join("d/d/d").is_dir());
    within(&cli, 30, "cleanup try");
}

/// The definitions of all tables were read again after each of them: 4,000 took two and a half minutes.
// rule C11
#[test]
fn many_new_tables_took_the_square_of_their_number() {
    let (_world, cli, at) = planned("CREATE TABLE one (a)");
    let inner = PathBuf::from(cli.ok("path try app.db").trim_end());
    let tables = (0..1000).map(|n| {
        format!("CREATE TABLE n{n} (id INTEGER PRIMARY KEY, a); INSERT INTO n{n} VALUES (1, 'x');")
    });
    let all = tables.collect::<String>();
    sql(&inner, &format!("BEGIN; {all} COMMIT"));
    within(&cli, 20, "commit try");
    assert_eq!(sql(&at, "SELECT a FROM n999"), "x");
    within(&cli, 20, "undo try");
    assert_eq!(sql(&at, "SELECT count(*) FROM sqlite_schema"), "1");
}
