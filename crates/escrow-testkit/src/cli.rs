//! Running a built binary hermetically: in a world, with an environment that holds nothing of the caller's.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::Value;

use crate::process;
use crate::skip::is_root;
use crate::stepper::Stepper;
use crate::strace::{Counts, Spec, count_syscalls};
use crate::user::{BINARIES, GID, UID, copy_executable};
use crate::world::{World, chown_tree};

/// The words of a command line: one line, split at its white space, or a list.
pub trait Words {
    /// Each word.
    fn words(self) -> Vec<OsString>;
}

impl Words for &str {
    fn words(self) -> Vec<OsString> {
        self.split_whitespace().map(OsString::from).collect()
    }
}

impl Words for &&str {
    fn words(self) -> Vec<OsString> {
        (*self).words()
    }
}

impl Words for String {
    fn words(self) -> Vec<OsString> {
        self.as_str().words()
    }
}

impl Words for &String {
    fn words(self) -> Vec<OsString> {
        self.as_str().words()
    }
}

impl<T: AsRef<OsStr>, const N: usize> Words for [T; N] {
    fn words(self) -> Vec<OsString> {
        self.as_slice().words()
    }
}

impl<T: AsRef<OsStr>> Words for Vec<T> {
    fn words(self) -> Vec<OsString> {
        self.as_slice().words()
    }
}

impl<T: AsRef<OsStr>> Words for &Vec<T> {
    fn words(self) -> Vec<OsString> {
        self.as_slice().words()
    }
}

impl<T: AsRef<OsStr>> Words for &[T] {
    fn words(self) -> Vec<OsString> {
        self.iter().map(|word| word.as_ref().to_owned()).collect()
    }
}

/// The words of a line.
pub fn words(line: &str) -> Vec<OsString> {
    line.words()
}

/// Runs a line that must succeed; its JSON document.
#[track_caller]
pub fn json(cli: &Cli, line: &str) -> Value {
    document(&cli.expect(format!("--json {line}"), 0), line)
}

/// Runs a line that must fail with `code`; the error of its JSON document, which is all that it printed.
#[track_caller]
pub fn json_error(cli: &Cli, line: &str, code: i32) -> Value {
    let outcome = cli.expect(format!("--json {line}"), code);
    let said = outcome.stderr_text();
    assert_eq!(said, "", "{line}: with --json everything is on stdout");
    let document = document(&outcome, line);
    assert_eq!(keys(&document), "error", "{line}");
    let members = "details hints kind message";
    assert_eq!(keys(&document["error"]), members, "{line}");
    document["error"].clone()
}

#[track_caller]
fn document(outcome: &Outcome, line: &str) -> Value {
    let text = outcome.stdout_text();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
}

/// Puts other bytes into a sandbox: `line` is plan, resource and path.
#[track_caller]
pub fn put(cli: &Cli, line: &str, bytes: impl AsRef<[u8]>) {
    cli.clone().stdin(bytes).ok(format!("write {line}"));
}

/// The keys of an object, sorted, with a space between them.
#[track_caller]
pub fn keys(value: &Value) -> String {
    let members = value.as_object().expect("an object");
    let mut keys: Vec<&str> = members.keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys.join(" ")
}

/// The members of a list.
#[track_caller]
pub fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

/// Each of these is in the text.
#[track_caller]
pub fn has<const N: usize>(text: &(impl std::fmt::Display + ?Sized), parts: [&str; N]) {
    let text = text.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// None of these is in the text.
#[track_caller]
pub fn lacks<const N: usize>(text: &(impl std::fmt::Display + ?Sized), parts: [&str; N]) {
    let text = text.to_string();
    for part in parts {
        assert!(!text.contains(part), "{part:?} is in: {text}");
    }
}

/// A binary and the surroundings it is run in. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Cli {
    binary: PathBuf,
    cwd: PathBuf,
    env: Vec<(OsString, OsString)>,
    stdin: Vec<u8>,
    user: Option<Arc<World>>,
    groups: Vec<u32>,
    machine: Option<Arc<World>>,
}

/// What a run left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The exit status; a signal counts negative, so SIGKILL is -9.
    pub status: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Outcome {
    /// Standard output as text.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl Cli {
    /// `binary` in `world`: the world is the working directory, `HOME`, `ESCROW_HOME` and `TMPDIR` lie in it, `TZ` is
    /// UTC, `LC_ALL` is C, and besides `PATH` nothing else is set.
    ///
    /// In a test that was started by `rerun_test_as_user_with`, the copy of the binary that was made there is used.
    pub fn new(world: &World, binary: &Path) -> Self {
        let copied = std::env::var_os(BINARIES)
            .zip(binary.file_name())
            .map(|(dir, name)| Path::new(&dir).join(name))
            .filter(|copy| copy.is_file());
        let mut env: Vec<(OsString, OsString)> = vec![
            ("HOME".into(), world.dir("user-home").into()),
            ("ESCROW_HOME".into(), world.home().into()),
            ("TMPDIR".into(), world.dir("tmp").into()),
            ("TZ".into(), "UTC".into()),
            ("LC_ALL".into(), "C".into()),
        ];
        // Coverage of the binary is measured through its children too.
        env.extend(
            ["PATH", "LLVM_PROFILE_FILE"]
                .into_iter()
                .filter_map(|name| Some((name.into(), std::env::var_os(name)?))),
        );
        Self {
            binary: copied.unwrap_or_else(|| binary.to_owned()),
            cwd: world.path().to_owned(),
            env,
            stdin: Vec::new(),
            user: None,
            groups: Vec::new(),
            machine: None,
        }
    }

    /// From here on as the test user, from a copy of the binary that everyone can run; `HOME`, `ESCROW_HOME` and
    /// `TMPDIR` are given to that user. Changes nothing for an ordinary user.
    #[must_use]
    pub fn user(mut self) -> Self {
        if is_root() && self.user.is_none() {
            for (name, value) in &self.env {
                if name == "HOME" || name == "ESCROW_HOME" || name == "TMPDIR" {
                    chown_tree(Path::new(value));
                }
            }
            let world = World::on_disk();
            self.binary = copy_executable(&self.binary, world.path());
            self.user = Some(Arc::new(world));
        }
        self
    }

    /// Lets the test user have these groups beside the own one.
    #[must_use]
    pub fn groups(mut self, groups: &[u32]) -> Self {
        self.groups = groups.to_vec();
        self
    }

    /// Lets the program, and only it, see other files of the machine: each a path below `/etc` or `/usr/bin`, and its
    /// text; what is in `/usr/bin` can be run, unless it is empty. They are mounted in a namespace of its own, so the machine keeps its own.
    /// For root only, who may still run the program as the test user.
    #[must_use]
    pub fn machine(mut self, files: &[(&str, &str)]) -> Self {
        let world = World::new();
        for directory in ["etc", "bin"] {
            world.dir(directory);
        }
        for (path, text) in files {
            let (to, mode) = match path.strip_prefix("/etc/") {
                Some(name) => (world.path().join("etc").join(name), 0o644),
                None => {
                    let name = path.strip_prefix("/usr/bin/");
                    let name = name.unwrap_or_else(|| panic!("{path} is in neither directory"));
                    let mode = if text.is_empty() { 0o644 } else { 0o755 };
                    (world.path().join("bin").join(name), mode)
                }
            };
            std::fs::write(&to, text)
                .and_then(|()| std::fs::set_permissions(&to, Permissions::from_mode(mode)))
                .unwrap_or_else(|error| panic!("cannot write {}: {error}", to.display()));
        }
        self.machine = Some(Arc::new(world));
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.retain(|(have, _)| have != name.as_ref());
        self.env
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets what the program reads; without it, its input is empty.
    #[must_use]
    pub fn stdin(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.stdin = bytes.as_ref().to_vec();
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn cwd(mut self, cwd: impl AsRef<Path>) -> Self {
        self.cwd = cwd.as_ref().to_owned();
        self
    }

    /// The command itself, for tests that start, kill or feed it in their own way.
    pub fn command(&self, args: impl Words) -> Command {
        let mut words = self.prefix();
        words.push(self.binary.clone().into());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(args.words())
            .env_clear()
            .current_dir(&self.cwd);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Lets the configuration that is found in the working directory count as a whole, with the content
    /// that it has now.
    ///
    /// # Panics
    /// Where there is none, or it cannot be trusted.
    #[track_caller]
    pub fn trust(&self) {
        self.ok(["trust", "--yes"]);
    }

    /// Runs it to its end.
    pub fn run(&self, args: impl Words) -> Outcome {
        let output = process::run(self.command(args), &self.stdin);
        let status = match (output.status.code(), output.status.signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => -signal,
            (None, None) => panic!("{} neither exited nor was killed", self.binary.display()),
        };
        Outcome {
            status,
            stdout: output.stdout,
            stderr: output.stderr,
        }
    }

    /// Runs it in another directory.
    pub fn run_in(&self, cwd: impl AsRef<Path>, args: impl Words) -> Outcome {
        self.clone().cwd(cwd).run(args)
    }

    /// Runs it under strace.
    pub fn trace(&self, args: impl Words) -> Counts {
        let mut words = self.prefix();
        words.push(self.binary.clone().into());
        let spec = Spec::new(&words[0])
            .args(&words[1..])
            .args(args.words())
            .cwd(&self.cwd);
        count_syscalls(
            &self
                .env
                .iter()
                .fold(spec, |spec, (name, value)| spec.env(name, value)),
        )
    }

    /// A stepper for it, to count its calls or let one go wrong.
    pub fn stepper(&self, args: impl Words) -> Stepper {
        Stepper::new(self.command(args)).stdin(&self.stdin)
    }

    /// Runs what must succeed; its standard output.
    ///
    /// # Panics
    /// With both streams, unless the status is 0.
    #[track_caller]
    pub fn ok(&self, args: impl Words) -> String {
        self.expect(args, 0).stdout_text()
    }

    /// Runs what must fail with `code`; its standard error.
    ///
    /// # Panics
    /// With both streams, unless the status is `code`.
    #[track_caller]
    pub fn fails(&self, args: impl Words, code: i32) -> String {
        self.expect(args, code).stderr_text()
    }

    /// Runs what must end with `code`.
    ///
    /// # Panics
    /// With both streams, unless the status is `code`.
    #[track_caller]
    pub fn expect(&self, args: impl Words, code: i32) -> Outcome {
        let args = args.words();
        let outcome = self.run(&args);
        assert!(
            outcome.status == code,
            "{} {args:?} ended with {} instead of {code}\nstdout: {}\nstderr: {}",
            self.binary.display(),
            outcome.status,
            outcome.stdout_text(),
            outcome.stderr_text(),
        );
        outcome
    }

    /// Runs what must print exactly this; its status may be any.
    ///
    /// # Panics
    /// With both streams, unless standard output is `text`.
    #[track_caller]
    pub fn says(&self, args: impl Words, text: impl AsRef<str>) -> Outcome {
        let args = args.words();
        let outcome = self.run(&args);
        let said = outcome.stderr_text();
        assert_eq!(outcome.stdout_text(), text.as_ref(), "{args:?}: {said}");
        outcome
    }

    /// Starts it; what it writes is thrown away.
    pub fn start(&self, args: impl Words) -> Child {
        let mut command = self.command(args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("it starts")
    }

    /// Makes a plan of one resource with this strategy.
    #[track_caller]
    pub fn plan(&self, name: &str, resource: &str, strategy: &str) {
        let words = ["plan", "create", name, "--resource", resource];
        self.ok([&words[..], &["--strategy", strategy]].concat());
    }

    /// The command behind other words: `outer` runs it as `"$@"`, or as its last arguments.
    pub fn behind(&self, outer: &[&str], args: impl Words) -> Command {
        let inner = self.command(args);
        let mut command = Command::new(outer[0]);
        command.args(&outer[1..]).arg(inner.get_program());
        command.args(inner.get_args()).env_clear();
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.cwd);
        command
    }

    fn prefix(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(world) = &self.machine {
            words.extend(["unshare", "-m", "sh", "-eu", "-c", MACHINE, "sh"].map(OsString::from));
            words.push(world.path().into());
        }
        if self.user.is_some() {
            let [uid, gid] = [format!("--reuid={UID}"), format!("--regid={GID}")];
            let groups: Vec<String> = self.groups.iter().map(u32::to_string).collect();
            let groups = match groups.is_empty() {
                true => "--clear-groups".to_owned(),
                false => format!("--groups={}", groups.join(",")),
            };
            words.extend(["setpriv", &uid, &gid, &groups, "--"].map(OsString::from));
        }
        words
    }
}

/// Lays the files in `$1` over those of the machine, then becomes the rest.
const MACHINE: &str = r#"
for pair in etc:/etc bin:/usr/bin; do
    if [ -n "$(ls -A "$1/${pair%%:*}")" ]; then
        mount -t overlay overlay -o "lowerdir=$1/${pair%%:*}:${pair#*:}" "${pair#*:}"
    fi
done
shift
exec "$@"
"#;
