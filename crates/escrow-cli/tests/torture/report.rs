//! The long form: every sweep in turn, and `docs/reliability.md` from what was found.

use std::fmt::Write as _;

use escrow_testkit::stepper::works;

use crate::bugs::Found;
use crate::sweep::say;
use crate::*;
use crate::{
    bucket, bugs, checkpoints, clones, damage, errors, forward, four, full, git, git_large, image,
    kills, next, parts, power, soak, sqlite, two_homes, unlinks,
};

/// A line of the table.
struct Row {
    what: &'static str,
    goal: &'static str,
    figures: Figures,
}

/// How long all of it may take, about.
fn minutes() -> u64 {
    let wanted = std::env::var("ESCROW_TORTURE_MINUTES").ok();
    let wanted = wanted.and_then(|text| text.parse().ok());
    wanted.unwrap_or(30)
}

/// For following one finding: only the sweeps whose row has these words. Then no document is written.
fn only() -> Option<String> {
    std::env::var("ESCROW_TORTURE_ROW").ok()
}

/// A sweep: its row, its goal, its share of the time, and itself.
type Sweep = (&'static str, &'static str, u32, fn(Form) -> Figures);

const SWEEPS: [Sweep; 35] = [
    ("`commit` killed at every call", "every call", 7, |form| {
        kills::kills(form, Verb::Commit)
    }),
    ("`undo` killed at every call", "every call", 4, |form| {
        kills::kills(form, Verb::Undo)
    }),
    (
        "`recover` killed at every call",
        "5,000 with the two above",
        8,
        |form| kills::kills(form, Verb::Recover),
    ),
    (
        "`commit` killed, then `recover` killed",
        "1,000 pairs",
        7,
        kills::pairs,
    ),
    ("torn writes", "every write", 2, kills::tears),
    (
        "errors at every call",
        "every call, 8 errors",
        8,
        errors::errors,
    ),
    ("failing syncs", "every sync", 2, errors::syncs),
    ("power cuts on ext4, XFS, Btrfs", "200", 3, |form| {
        power::cuts(form).unwrap_or_default()
    }),
    (
        "`checkpoint`, `restore`, `fork`, `gc` killed at every call, writes torn",
        "every call",
        7,
        checkpoints::kills,
    ),
    (
        "the same with errors at every call, and failing syncs",
        "every call, 8 errors",
        5,
        checkpoints::errors,
    ),
    (
        "the same with power cuts on ext4, XFS, Btrfs",
        "200",
        2,
        |form| checkpoints::cuts(form).unwrap_or_default(),
    ),
    (
        "snapshots on Btrfs: every verb killed, and with errors",
        "every call, 8 errors",
        4,
        |form| snapshots::faults(form).unwrap_or_default(),
    ),
    (
        "commits into a container's overlay root: commit, undo and recover killed, and with errors",
        "every call, 8 errors",
        4,
        |form| container::faults(form).unwrap_or_default(),
    ),
    (
        "a part committed and undone: killed, writes torn, errors at every call",
        "every call, 8 errors",
        4,
        parts::faults,
    ),
    (
        "any verb killed at every call, then any verb",
        "every call, 130 pairs",
        14,
        next::kills,
    ),
    (
        "any verb with an error at every call, then any verb",
        "every call, 130 pairs",
        8,
        next::errors,
    ),
    (
        "the power cut in any verb on ext4, XFS, Btrfs, then any verb",
        "every call, 130 pairs",
        4,
        |form| next::cuts(form).unwrap_or_default(),
    ),
    (
        "removals that fail in a commit, then `gc` and `undo`",
        "every removal",
        2,
        unlinks::removals,
    ),
    (
        "steps that cannot be taken back, failed and killed",
        "every order, every step",
        2,
        forward::steps,
    ),
    (
        "a checkout, a directory, SQLite and PostgreSQL in one plan, `commit` killed at every call",
        "every call",
        3,
        four::kills,
    ),
    (
        "a directory and a clone of a PostgreSQL database in one plan, every verb killed at every call",
        "every call",
        3,
        clones::kills,
    ),
    (
        "full disks: ext4 with 1 and 4 KiB blocks, XFS, Btrfs",
        "every size of the last MiB",
        5,
        |form| full::fills(form).unwrap_or_default(),
    ),
    (
        "git checkouts, alone and with a directory: every verb killed at every call",
        "every call",
        6,
        git::kills,
    ),
    (
        "git checkouts, alone and with a directory: every verb with errors at every call",
        "every call, 5 errors",
        4,
        git::errors,
    ),
    (
        "git checkouts, alone and with a directory: every verb with removals that fail",
        "every removal",
        3,
        git::removals,
    ),
    (
        "git checkouts with power cuts on ext4, XFS, Btrfs",
        "200",
        4,
        |form| git::cuts(form).unwrap_or_default(),
    ),
    (
        "a git checkout of 50,000 files and 2,000 commits, killed",
        "60",
        3,
        git_large::kills,
    ),
    (
        "SQLite databases with a directory: every verb killed at every call, writes torn",
        "every call",
        5,
        sqlite::kills,
    ),
    (
        "SQLite databases with errors at every call",
        "every call, 5 errors",
        4,
        sqlite::errors,
    ),
    (
        "SQLite databases with power cuts on ext4, XFS, Btrfs",
        "200",
        3,
        |form| sqlite::cuts(form).unwrap_or_default(),
    ),
    (
        "SQLite databases: random histories of both sides, against a model and `sqldiff`",
        "10,000",
        6,
        sqlite::histories,
    ),
    (
        "SQLite databases: random histories with a writer on the original",
        "1,000",
        4,
        sqlite::races,
    ),
    (
        "a store that lost its records, then any verb",
        "every damage",
        1,
        damage::losses,
    ),
    (
        "a directory, SQLite and a bucket of S3: engine, program and server killed",
        "every call, every request",
        3,
        bucket::losses,
    ),
    (
        "the whole suite against an image of podman, its program killed in each method",
        "once",
        1,
        image::suite,
    ),
];

/// What has no end, with its share of the time in hundredths.
type Soak = (&'static str, u32, fn(Duration) -> Figures);

const SOAKS: [Soak; 2] = [
    ("killed at random moments", 3, soak::soak),
    (
        "two homes, everything at random, killed at random",
        5,
        two_homes::soak,
    ),
];

/// Every soak and every sweep. What a sweep that comes to its end leaves of its time is for those after it: with
/// enough time, all of them come to their end.
fn sweeps(time: Duration) -> Vec<Row> {
    let wanted = |what: &str| only().is_none_or(|only| what.contains(&only));
    let mut rows = Vec::new();
    let mut add = |what, goal, figures| {
        let row = Row {
            what,
            goal,
            figures,
        };
        say(&format!(
            "torture: {what}: {} points, {} violations, {:.0} s",
            points(&row.figures),
            row.figures.wrong.len(),
            row.figures.took.as_secs_f64()
        ));
        rows.push(row);
    };
    let soaks = SOAKS.iter().filter(|soak| wanted(soak.0));
    let mut left = time;
    for (what, share, soak) in soaks {
        let time = time * *share / 100;
        add(*what, "60 s", soak(time));
        left = left.saturating_sub(time);
    }
    let sweeps: Vec<&Sweep> = SWEEPS.iter().filter(|sweep| wanted(sweep.0)).collect();
    let mut shares: u32 = sweeps.iter().map(|sweep| sweep.2).sum();
    for (what, goal, share, sweep) in sweeps {
        let started = Instant::now();
        add(*what, *goal, sweep(Form::Long(left * *share / shares)));
        left = left.saturating_sub(started.elapsed());
        shares -= share;
    }
    rows
}

const HEAD: &str = "# Reliability

Written by `make torture`; do not edit by hand.

A commit releases every resource of a plan or none. Here that is tried: the real program runs on real files, one of its
system calls goes wrong, and then a checker that knows nothing of the engine looks at every original: contents, modes,
owners, attributes, links, and the times of files and directories. Every one must be as before, or every one must be
new, made with plain means from the same changes. Beside that:

- `escrow recover` succeeds after every fault, and finds nothing to do the second time;
- what the program said is true: success is success, and a plain failure (not exit code 5) changed nothing;
- after a commit that came out old the sandboxes list the same changes, and the commit succeeds when it is tried
  again; after one that came out new, `escrow undo` brings the old state back (every tenth time);
- after `escrow cleanup` nothing is left, in the home or beside the originals.

`checkpoint`, `restore`, `plan fork` and `gc` are held to the same. Their plan has two rounds of changes with a checkpoint
between them, and what a sandbox holds is what a program sees that is run inside, compared with a plain directory in which
the same edits were made:

- every sandbox of the plan shows the second round, or after a restore every one the first; the originals are untouched;
- the checkpoint can still be restored exactly, and so can what was kept just before;
- a fork is whole and exact or cannot be used, and outlives the plan that it came from;
- `gc` spares every open plan and every layer that a fork lives on, and its second run takes the rest.

So is a part of a plan (`commit --only`) and its undo: every original has the part, or every one is old, and every sandbox
lists the rest, or everything, accordingly; then the part is released, taken back and released again, and the rest makes it
whole.

Two steps are tried as well: any verb is interrupted — by a kill, an error or a power cut at any of its calls — and then any
verb comes next. A small model says what a plan may be after each of the two:

- every original holds the same round of changes, and it is one that the plan may have released: a commit that succeeds
  has released every member, a command that is run sees the same in every sandbox, a fork holds what its plan held;
- a verb is refused only while something is interrupted; `recover` ends that, and then only what the plan does not
  allow is refused;
- after removals that failed at the end of a commit, nothing in the rest of the sandbox is shared with an original, and
  `undo` gives exactly the old state, before `gc` and after it;
- on a full disk no command is ended by a signal, and `recover`, `rollback`, `cleanup` and `gc` succeed;
- a git checkout has the branch, the index and the files of before, or all of them new, to the names of the commits that git
  alone makes of the same work; `git fsck` finds nothing, and no lock, reference, pack or temporary file is left in it;
- a SQLite database, read by `sqlite3`, is old or new as a whole and passes `PRAGMA integrity_check`, and what another process
  wrote to it meanwhile is there; nothing is left beside it;
- when the store was emptied, removed, replaced by an older copy or cut off from its log, no work that was not released
  is removed.

The originals have files that are changed, added, deleted, linked, given another mode, owner or attribute; directories
that come, go and change; files that become directories, and the reverse. They are sandboxed by every strategy alone, and
by mixes of two and three in one plan.
";

const MEANING: &str = "
Points are chosen evenly from all that there are, until the time is up; *all* says that the sweep came to its end. Where
the number of calls differs a little from run to run, the last few points of a run are never met, and not counted.

- *Killed*: all calls before this one are done, this one is not, and the process is gone.
- *Torn*: half of the bytes are written, and the process is gone.
- *Errors*: the call fails with `ENOSPC`, `EIO`, `EROFS`, `EACCES`, `EMFILE`, `ENOMEM`, `EDQUOT` or `EINTR`, once, or
  with all that follow (`EINTR` only once). `undo` and `recover` meet `EIO` and `ENOSPC`.
- *Failing syncs*: as errors, with `EIO`, only for calls that make things durable. None of them is tried again on the
  same file.
- *Power cuts*: what the file system has sent to its disk at that call is all there is; it is mounted again, and
  recovered. One cut of each kind comes right after the program said that it is done: then the new state is there.
";

const LIMITS: &str = "
## What this does not show

- A drive that says that it has stored what is only in its cache is not modelled: the disk of a power cut holds
  everything that was sent to it, and loses nothing.
- After a failed sync, SQLite may sync its own files (`state.db`, `state.db-wal`) again. Only ours are checked.
- Programs that write to the originals while a commit runs, and take no notice of anybody, are the subject of other
  tests. What they write is kept, but at the moment of a rename nobody can stop them.
- The calls are those that this program makes, on this kernel, in this order. Threads are given one processor, so that
  the order is nearly the same each time.
";

fn thousands(number: usize) -> String {
    let text = number.to_string();
    let mut out = String::new();
    for (place, digit) in text.chars().enumerate() {
        if place > 0 && (text.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// How many points, and of how many if the time was up before the end.
fn points(figures: &Figures) -> String {
    let met = thousands(figures.points);
    match figures.planned {
        planned if figures.tried < planned => format!("{met} of {}", thousands(planned)),
        0 => met,
        _ => format!("all {met}"),
    }
}

fn document(rows: &[Row], found: &[Found]) -> String {
    let mut text = HEAD.to_owned();
    let put = |text: &mut String, line: std::fmt::Arguments<'_>| {
        text.write_fmt(line)
            .expect("writing to a String cannot fail");
        text.push('\n');
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let now = jiff::Timestamp::now().to_string();
    put(
        &mut text,
        format_args!(
            "\nMachine: {} cores, Linux {}, {}, {}.\n\n## Figures\n",
            thread::available_parallelism().map_or(0, usize::from),
            kernel.trim().split('-').next().unwrap_or_default(),
            if is_root() {
                "as root"
            } else {
                "as an ordinary user"
            },
            now.split('T').next().unwrap_or_default(),
        ),
    );
    put(
        &mut text,
        format_args!(
            "| fault | points | goal | violations | plans | seconds |\n|---|---|---|---|---|---|"
        ),
    );
    for row in rows {
        put(
            &mut text,
            format_args!(
                "| {} | {} | {} | {} | {} | {:.0} |",
                row.what,
                points(&row.figures),
                row.goal,
                row.figures.wrong.len(),
                row.figures.scenarios.len(),
                row.figures.took.as_secs_f64(),
            ),
        );
    }
    let points: usize = rows.iter().map(|row| row.figures.points).sum();
    let wrong: usize = rows.iter().map(|row| row.figures.wrong.len()).sum();
    put(
        &mut text,
        format_args!(
            "| **all** | **{}** |  | **{wrong}** |  |  |",
            thousands(points)
        ),
    );
    text.push_str(MEANING);
    put(
        &mut text,
        format_args!(
            "\n## Control\n\nThat nothing is found shows something only if something would be. In the same run each of \
             these\nmistakes was built into the program on purpose; {} of {} were found.\n",
            found.iter().filter(|one| one.way.is_some()).count(),
            found.len()
        ),
    );
    put(
        &mut text,
        format_args!("| mistake | found by | after points |\n|---|---|---|"),
    );
    for one in found {
        put(
            &mut text,
            format_args!(
                "| `{}` | {} | {} |",
                one.bug,
                one.way.unwrap_or("**not found**"),
                one.points
            ),
        );
    }
    text.push_str(LIMITS);
    text
}

#[test]
fn the_long_form() {
    if std::env::var_os("ESCROW_TORTURE").is_none_or(|form| form != "long") {
        return;
    }
    assert!(works(), "programs cannot be stepped here");
    let rows = sweeps(Duration::from_secs(60 * minutes()));
    assert!(!rows.is_empty(), "no row has these words");
    let found = match cfg!(feature = "seeded-bugs") && only().is_none() {
        true => bugs::all(Form::Long(Duration::ZERO)),
        false => Vec::new(),
    };
    if only().is_none() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reliability.md");
        fs::write(&path, document(&rows, &found))
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
    let wrong: Vec<&String> = rows.iter().flat_map(|row| &row.figures.wrong).collect();
    assert!(wrong.is_empty(), "{} violations: {wrong:#?}", wrong.len());
    let missed = found.iter().filter(|one| one.way.is_none());
    let missed: Vec<&str> = missed.map(|one| one.bug).collect();
    assert!(missed.is_empty(), "bugs that were not found: {missed:?}");
}
