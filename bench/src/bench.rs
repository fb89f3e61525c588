//! What every figure needs: a private world, the built program, and how often to measure.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use escrow_testkit::skip::is_root;
use escrow_testkit::{Cli, Fs, LoopFs, World};

use crate::machine;

/// One run of the harness.
pub(crate) struct Bench {
    world: Option<World>,
    /// A file system without a past, which takes the world with it.
    fresh_fs: Option<LoopFs>,
    escrow: PathBuf,
    /// Smaller trees, fewer rounds.
    pub(crate) quick: bool,
}

impl Bench {
    /// Builds `escrow` in release mode where cargo is at hand, so that never an old one is measured.
    pub(crate) fn new(quick: bool) -> Self {
        if let Some(cargo) = std::env::var_os("CARGO") {
            let mut build = Command::new(cargo);
            build.args(["build", "--release", "--locked", "-p", "escrow-cli"]);
            let status = build.status().expect("cargo started us, so it starts");
            assert!(status.success(), "cannot build escrow");
        }
        let escrow = own_binary().with_file_name("escrow");
        assert!(escrow.is_file(), "build escrow-cli in the same mode first");
        let fresh_fs = is_root().then(|| fresh_fs(quick));
        let world = match &fresh_fs {
            Some(fs) => World::under(fs.path()),
            None => World::on_disk(),
        };
        spread(world.path());
        Self {
            world: Some(world),
            fresh_fs,
            escrow,
            quick,
        }
    }

    /// What it all lies on.
    pub(crate) fn ground(&self) -> String {
        let name = machine::file_system(self.path());
        match self.fresh_fs {
            Some(_) => format!("a new {name} in a loop image"),
            None => name,
        }
    }

    /// Where everything is made.
    pub(crate) fn path(&self) -> &Path {
        self.world().path()
    }

    fn world(&self) -> &World {
        self.world.as_ref().expect("it is taken at the end only")
    }

    /// A directory of this run.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        self.world().dir(name)
    }

    /// The path of something to be made, unlike that of any other run: ext4 chooses the region of a directory by the
    /// hash of its name, so with equal names a run would land on what the one before it deleted.
    pub(crate) fn fresh(&self, name: &str) -> PathBuf {
        let world = self.path().file_name().unwrap_or_default();
        self.path()
            .join(format!("{}-{name}", world.to_string_lossy()))
    }

    /// The program, with a home of its own.
    pub(crate) fn escrow(&self, home: &str) -> Escrow {
        let home = self.fresh(&format!("home-{home}"));
        std::fs::create_dir(&home).unwrap_or_else(|error| panic!("{}: {error}", home.display()));
        let cli = Cli::new(self.world(), &self.escrow).env("ESCROW_HOME", &home);
        // The first command of a home also makes the home; that is not what is measured.
        cli.ok(["plan", "list"]);
        spread(&home.join("sandboxes"));
        Escrow { cli, home }
    }

    /// How often to measure what takes about this long.
    pub(crate) fn rounds(&self, long: bool) -> usize {
        match (self.quick, long) {
            (true, _) => 3,
            (false, true) => 5,
            (false, false) => 9,
        }
    }

    /// Waits until everything is on disk.
    pub(crate) fn settle(&self) {
        let dir = std::fs::File::open(self.path()).expect("the world is there");
        rustix::fs::syncfs(&dir).expect("a file system can be synced");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Millions of files need not be removed one by one from a file system that goes with them.
        if self.fresh_fs.is_some() {
            std::mem::forget(self.world.take());
        }
    }
}

/// The program with one home.
pub(crate) struct Escrow {
    /// For tracing it.
    pub(crate) cli: Cli,
    home: PathBuf,
}

impl Escrow {
    /// Runs a command, which must succeed; how long it took.
    pub(crate) fn time(&self, args: &[&str]) -> Duration {
        time(&mut self.cli.command(args), &[0])
    }

    /// A new plan with a sandbox; how long it took.
    pub(crate) fn create(&self, plan: &str, original: &Path, strategy: &str) -> Duration {
        let mut command = self.cli.command(["plan", "create", plan]);
        command.arg("--resource").arg(original);
        command.args(["--strategy", strategy]);
        time(&mut command, &[0])
    }

    /// Removes a plan with its sandboxes; how long it took.
    pub(crate) fn cleanup(&self, plan: &str) -> Duration {
        self.time(&["cleanup", "--yes", plan])
    }

    /// The area of the only sandbox of this home.
    pub(crate) fn area(&self) -> PathBuf {
        let areas: Vec<PathBuf> = std::fs::read_dir(self.home.join("sandboxes"))
            .and_then(|entries| {
                entries
                    .map(|entry| entry.map(|entry| entry.path()))
                    .collect()
            })
            .expect("a home has a directory for areas");
        match areas.as_slice() {
            [area] => area.clone(),
            several => panic!("{} sandboxes where one was expected", several.len()),
        }
    }

    /// The state of this home.
    pub(crate) fn state(&self) -> PathBuf {
        self.home.join("state.db")
    }

    /// How many paths the plan's diff names.
    pub(crate) fn changes(&self, plan: &str) -> usize {
        self.cli.ok(["diff", "--name-status", plan]).lines().count()
    }
}

/// A new ext4 with room for all copies.
///
/// For minutes after a deletion ext4 looks at every inode deleted in a region before it makes a new one there, which
/// makes the next process ten times slower. Where others delete, or an earlier run did, that hits anyone at random.
fn fresh_fs(quick: bool) -> LoopFs {
    let (gib, inodes) = if quick {
        (6, "1000000")
    } else {
        (40, "9000000")
    };
    // Nothing is left for the kernel to initialise while times are taken.
    let args = ["-N", inodes, "-E", "nodiscard,lazy_itable_init=0"];
    LoopFs::on_disk(Fs::Ext4, gib * 1024, &args).expect("only root gets here")
}

/// Where there is no new file system: asks ext4 to give each directory made in `path` a region of its own. For the same
/// reason nothing is deleted while times are taken, but what is measured by its deletion.
fn spread(path: &Path) {
    if machine::file_system(path) == "ext4" {
        time(&mut command("chattr", &["+T"], &[path]), &[0]);
    }
}

/// This program itself.
pub(crate) fn own_binary() -> PathBuf {
    std::env::current_exe().expect("a running program has a file")
}

/// Runs a command, silently; how long it took from start to end. Its status must be one of `expected`.
pub(crate) fn time(command: &mut Command, expected: &[i32]) -> Duration {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let start = Instant::now();
    let output = command
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let took = start.elapsed();
    assert!(
        output
            .status
            .code()
            .is_some_and(|code| expected.contains(&code)),
        "{command:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    took
}

/// A command of words and paths.
pub(crate) fn command(program: &str, words: &[&str], paths: &[&Path]) -> Command {
    let mut command = Command::new(program);
    command.args(words).args(paths);
    command.env("LC_ALL", "C");
    command
}
