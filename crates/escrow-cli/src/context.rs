//! The environment, read once and handed on as values.
#![expect(
    clippy::disallowed_methods,
    reason = "this is the one file that reads the environment"
)]

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use escrow::config::{FILE_NAME, Settings, Sources};
use escrow::manager::{Manager, Options};
use escrow::model::{Keep, SystemOrigin};
use escrow::policy::Policy;
use escrow::store::{Plan, Resource};
use escrow::strategy::Registry;
use escrow::strategy::registry::AUTO;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource as Limited, Rlimit, getrlimit, setrlimit};

use crate::commands::Global;
use crate::error::Failure;
use crate::ui::Ui;

/// How long a command waits for another one that works on the same plan.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was typed.
pub(crate) fn arguments() -> Vec<OsString> {
    std::env::args_os().collect()
}

/// Whether `--json` was typed, also on a line that cannot be understood.
pub(crate) fn wants_json(typed: &[OsString]) -> bool {
    typed
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| word == "--json")
}

/// How many files could be open when this program began.
static FILES: OnceLock<Option<u64>> = OnceLock::new();

/// Lets this program have as many files open as the system permits: a plan with many checkpoints has many
/// layers, and each is opened. What cannot be had is done without.
pub(crate) fn open_many() {
    let limit = getrlimit(Limited::Nofile);
    let many = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if limit.current != limit.maximum && setrlimit(Limited::Nofile, many).is_ok() {
        FILES.get_or_init(|| limit.current);
    }
}

/// How many files those may have open whom this program starts, if not as many as itself.
pub(crate) fn files_before() -> Option<u64> {
    FILES.get().copied().flatten()
}

/// The limit as it was when this program began, for whoever it starts next.
pub(crate) fn open_as_before() -> std::io::Result<()> {
    let limit = Rlimit {
        current: files_before(),
        ..getrlimit(Limited::Nofile)
    };
    match limit.current {
        Some(_) => Ok(setrlimit(Limited::Nofile, limit)?),
        None => Ok(()),
    }
}

/// The engine and where the user stands.
pub(crate) struct Context {
    pub(crate) manager: Manager,
    pub(crate) directory: PathBuf,
    /// The configuration that was typed.
    pub(crate) config: Option<PathBuf>,
}

impl Context {
    /// Opens the engine as the options and the environment say; a lenient one goes on without a found configuration
    /// that cannot be used.
    pub(crate) fn open(global: &Global, lenient: bool) -> Result<Self, Failure> {
        // By its name, not by its path: who stands in a directory that is gone can still work with
        // everything that is named absolutely.
        let directory = PathBuf::from(".");
        let user_home = variable("HOME").map(PathBuf::from);
        let data = variable("XDG_DATA_HOME").map(PathBuf::from);
        let data = data.or_else(|| user_home.as_ref().map(|home| home.join(".local/share")));
        let named = global
            .home
            .clone()
            .or_else(|| variable("ESCROW_HOME").map(PathBuf::from));
        let Some(home) = named.or_else(|| data.map(|data| data.join("escrow"))) else {
            return Err(Failure::usage(
                "cannot tell where the state is: set ESCROW_HOME or HOME",
            ));
        };
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
        let principal = global
            .principal
            .clone()
            .or_else(|| text("ESCROW_PRINCIPAL"));
        let config = global.config.clone();
        let manager = Manager::open(Options {
            home: std::path::absolute(&home).unwrap_or(home),
            origin: Arc::new(SystemOrigin),
            registry: Registry::builtin(),
            principal: principal.unwrap_or_else(user),
            policy: Policy::default(),
            strategy: text("ESCROW_SANDBOX_STRATEGY").unwrap_or_else(|| AUTO.to_owned()),
            user_home,
            patience: PATIENCE,
            settings: Settings::default(),
            keep: Keep::default(),
            sources: Sources {
                system: Some(PathBuf::from("/etc/escrow").join(FILE_NAME)),
                user: user_config().map(|config| config.join("escrow").join(FILE_NAME)),
                named: config.clone().or_else(named_config),
                directory: current_directory(),
                lenient,
            },
        })?;
        Ok(Self {
            manager,
            directory,
            config,
        })
    }

    /// Says what the engine has to say beside the answer. Called before work begins, so that the user knows what
    /// does not count for it, and at the end.
    pub(crate) fn tell_notices(&self, ui: &Ui) {
        for notice in self.manager.notices() {
            ui.notice(&notice);
        }
    }

    /// The plan that was typed, or the newest open one of this directory.
    pub(crate) fn plan(&self, typed: Option<&str>) -> Result<Plan, Failure> {
        Ok(self.manager.resolve_plan(typed, &self.directory)?)
    }

    /// The plan that was typed, or the one of this directory that was committed last.
    pub(crate) fn committed_plan(&self, typed: Option<&str>) -> Result<Plan, Failure> {
        Ok(self.manager.resolve_committed(typed, &self.directory)?)
    }

    /// The plan and the resource that were typed, and the `rest` words behind them. The plan may
    /// be left out.
    pub(crate) fn target<'a>(
        &self,
        words: &'a [OsString],
        rest: usize,
    ) -> Result<(Plan, Resource, &'a [OsString]), Failure> {
        let (typed, words) = match words.len() > rest + 1 {
            // What is not UTF-8 names no plan, and must not count as left out.
            true => (Some(words[0].to_string_lossy()), &words[1..]),
            false => (None, words),
        };
        let missing = |plan: &Plan| {
            Failure::usage(format!(
                "'{}' is a plan; a word is missing behind it",
                plan.name
            ))
            .hint("the order is [PLAN] RESOURCE PATH")
        };
        // The first word may be a plan whose resource, or path, was forgotten.
        let forgotten = || match &typed {
            Some(_) => None,
            None => words[0]
                .to_str()
                .and_then(|word| self.plan(Some(word)).ok()),
        };
        let plan = match self.plan(typed.as_deref()) {
            Err(error) => return Err(forgotten().map_or(error, |plan| missing(&plan))),
            Ok(plan) => plan,
        };
        match self.manager.resource_in(&plan, &words[0], &self.directory) {
            Err(error) => Err(forgotten().map_or_else(|| error.into(), |plan| missing(&plan))),
            Ok(resource) => Ok((plan, resource, &words[1..])),
        }
    }

    /// The resource of a plan that was typed, by name or path.
    pub(crate) fn resource(&self, plan: &Plan, typed: &OsStr) -> Result<Resource, Failure> {
        Ok(self.manager.resource_in(plan, typed, &self.directory)?)
    }
}

/// Whether signals are for a command that we run, and not for us.
static PASSED_ON: AtomicBool = AtomicBool::new(false);

/// A flag that is raised when the user interrupts. The second time the process ends at once.
#[allow(
    unsafe_code,
    reason = "a handler of one's own has no safe form; this one touches two flags and may end the process"
)]
pub(crate) fn on_interrupt() -> Arc<AtomicBool> {
    static RAISED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    let raised = RAISED.get_or_init(|| {
        let raised = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let raised = Arc::clone(&raised);
            let handle = move || {
                if !PASSED_ON.load(Ordering::SeqCst) && raised.swap(true, Ordering::SeqCst) {
                    signal_hook::low_level::exit(128 + signal);
                }
            };
            // Where it cannot be caught, a signal ends the process, which leaves nothing behind
            // that the next command does not find.
            // SAFETY: the handler takes no lock and no memory; what it calls may be called in one.
            match unsafe { signal_hook::low_level::register(signal, handle) } {
                Ok(_) | Err(_) => {}
            }
        }
        raised
    });
    Arc::clone(raised)
}

/// Whether there is anything that a command's name may mean.
pub(crate) fn is_program(name: &OsStr) -> bool {
    let path = variable("PATH").unwrap_or_default();
    match name.as_bytes().contains(&b'/') {
        true => PathBuf::from(name).exists(),
        false => std::env::split_paths(&path).any(|dir| dir.join(name).exists()),
    }
}

/// The environment as it is.
pub(crate) fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// A word cut in two, without the byte at `at`.
pub(crate) fn split(word: &OsStr, at: usize) -> (OsString, OsString) {
    let bytes = word.as_bytes();
    let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    (text(&bytes[..at]), text(&bytes[at + 1..]))
}

/// The configuration that the environment names.
fn named_config() -> Option<PathBuf> {
    variable("ESCROW_CONFIG").map(PathBuf::from)
}

/// Where the user keeps configurations.
fn user_config() -> Option<PathBuf> {
    let config = variable("XDG_CONFIG_HOME").map(PathBuf::from);
    // What is not absolute is to be ignored, says the standard.
    let config = config.filter(|path| path.is_absolute());
    config.or_else(|| user_home().map(|home| home.join(".config")))
}

/// Where we stand, if that is still there.
fn current_directory() -> Option<PathBuf> {
    std::env::current_dir().ok()
}

/// Where the supervisor listens, if this runs inside `escrow run`.
pub(crate) fn socket() -> Option<PathBuf> {
    variable("ESCROW_SOCKET").map(PathBuf::from)
}

/// The home directory of the user.
pub(crate) fn user_home() -> Option<PathBuf> {
    variable("HOME").map(PathBuf::from)
}

/// This program again, as the way inside.
pub(crate) fn door() -> std::process::Command {
    let mut door = std::process::Command::new("/proc/self/exe");
    door.arg("inside");
    door
}

/// Why `escrow run` does not work here; `None` if it does.
pub(crate) fn why_no_run() -> Option<String> {
    match door().stdin(std::process::Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let first = said.lines().next().unwrap_or("it ended without a word");
            Some(first.trim_start_matches("error: ").to_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}

/// Gives a program a file on standard input as a pipe: through a descriptor of the file itself it
/// could be opened again, for writing.
pub(crate) fn shield_input(door: &mut std::process::Command) -> std::io::Result<()> {
    let mut input = std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let kind = input.metadata()?.file_type();
    if kind.is_dir() {
        // Whoever stands in it could write there.
        door.stdin(std::process::Stdio::null());
    }
    if !kind.is_file() {
        return Ok(());
    }
    let (read, mut write) = std::io::pipe()?;
    door.stdin(read);
    std::thread::spawn(move || match std::io::copy(&mut input, &mut write) {
        // Whoever does not read to the end needs no more.
        Ok(_) | Err(_) => {}
    });
    Ok(())
}

/// Lets a program say on standard error what it would say on standard output.
pub(crate) fn talk_only(door: &mut std::process::Command) -> std::io::Result<()> {
    door.stdout(std::io::stderr().as_fd().try_clone_to_owned()?);
    Ok(())
}

/// The status that a shell would show.
pub(crate) fn shell_status(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// A descriptor that was handed over by whoever started us.
#[allow(
    unsafe_code,
    reason = "a number that came through exec has no other way back to a descriptor"
)]
pub(crate) fn inherited(number: i32) -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: `escrow run` opened it for us, and nobody else in this process knows it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// The terminal that we were started from, and whether it is ours to hand over at once: we stand in
/// front, and nobody beside us in a pipeline may need it.
pub(crate) fn terminal() -> (Option<OwnedFd>, bool) {
    use std::io::IsTerminal;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(c"/dev/tty", flags, Mode::empty()).ok();
    let owner = terminal.as_ref().map(rustix::termios::tcgetpgrp);
    let alone = std::io::stdin().is_terminal()
        && std::io::stdout().is_terminal()
        && std::io::stderr().is_terminal();
    let front = alone && owner == Some(Ok(rustix::process::getpgrp()));
    (terminal, front)
}

/// The signals that are passed on to a command, each readable when it comes. While this lives they
/// are the command's and not ours.
pub(crate) struct Signals(pub(crate) Vec<(i32, OwnedFd)>);

impl Signals {
    pub(crate) fn watch() -> std::io::Result<Self> {
        use signal_hook::consts::{
            SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
        };
        let mut all = Vec::new();
        for signal in [
            SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2, SIGWINCH,
        ] {
            let (read, write) = std::os::unix::net::UnixStream::pair()?;
            read.set_nonblocking(true)?;
            signal_hook::low_level::pipe::register(signal, write)?;
            all.push((signal, OwnedFd::from(read)));
        }
        PASSED_ON.store(true, Ordering::SeqCst);
        Ok(Self(all))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        PASSED_ON.store(false, Ordering::SeqCst);
    }
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The user as a principal: by name where the machine knows one, else by number.
fn user() -> String {
    let uid = rustix::process::getuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    });
    format!(
        "user:{}",
        name.map_or_else(|| uid.to_string(), str::to_owned)
    )
}
