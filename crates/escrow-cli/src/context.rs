//! Reads the environment once, and passes it on as values.
#![expect(
    clippy::disallowed_methods,
    reason = "this is the one file that reads the environment"
)]

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use escrow::error::Error;
use escrow::manager::Manager;
use escrow::model::text::Location;
use escrow::model::{PlanId, PlanState};
use escrow::run::{Attached, Console};
use escrow::{Plan, Resource};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource as Limited, Rlimit, getrlimit, setrlimit};

use crate::commands::{GlobalArgs, show};
use crate::error::{Failure, RECOVERY_NEEDED};
use crate::ui::{self, PromptAnswer, Tone, Ui, paint};

/// This program again, as the way inside and for commands that ask there.
const HELPER: &str = "/proc/self/exe";

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
fn files_before() -> Option<u64> {
    FILES.get().copied().flatten()
}

/// The engine and where the user stands.
pub(crate) struct Context {
    pub(crate) manager: Manager,
    pub(crate) directory: PathBuf,
}

impl Context {
    /// Opens the engine as the options and the environment say; a lenient one goes on without a found configuration
    /// that cannot be used.
    pub(crate) fn open(global: &GlobalArgs, lenient: bool) -> Result<Self, Failure> {
        // By its name, not by its path: who stands in a directory that is gone can still work with
        // everything that is named absolutely.
        let directory = PathBuf::from(".");
        let mut builder = Manager::builder()
            .helper(HELPER)
            .console(Arc::new(Terminal))
            .lenient(lenient);
        if let Some(home) = &global.home {
            builder = builder.home(home);
        }
        if let Some(principal) = &global.principal {
            builder = builder.principal(principal);
        }
        if let Some(config) = &global.config {
            builder = builder.config(config);
        }
        let manager = builder.open()?;
        Ok(Self { manager, directory })
    }

    /// Says what the engine has to say beside the answer. Called before work begins, so that the user knows what
    /// does not count for it, and at the end.
    pub(crate) fn tell_notices(&self, ui: &Ui) {
        for notice in self.manager.notices() {
            ui.notice(&notice);
        }
    }

    /// The plan that was typed, or the open one of this directory, which is named then. Of several the user chooses.
    pub(crate) fn plan(&self, typed: Option<&str>, ui: &Ui) -> Result<Plan, Failure> {
        let plan = match self.manager.resolve_plan(typed, &self.directory) {
            Err(error) => choose(error, ui)?,
            Ok(plan) => plan,
        };
        tell_plan(typed, &plan, ui);
        Ok(plan)
    }

    /// Refuses an open plan that has no sandboxes yet: a command would work on nothing of it.
    pub(crate) fn check_sandboxes(&self, plan: &Plan) -> Result<(), Failure> {
        let is_empty = || Ok::<_, Failure>(self.manager.view(plan.clone())?.sandboxes.is_empty());
        if plan.state != PlanState::Open || !is_empty()? {
            return Ok(());
        }
        let name = &plan.name;
        Err(
            Failure::usage(format!("the plan {name} has no sandboxes yet"))
                .hint(format!(
                    "`escrow sandbox create {name} .` makes one of this directory; `escrow run --new` begins another plan"
                ))
                .status(2),
        )
    }

    /// The plan that the first word means, or the open one of this directory, and the words that are paths.
    pub(crate) fn plan_and_paths<'a>(
        &self,
        words: &'a [OsString],
        ui: &Ui,
    ) -> Result<(Plan, &'a [OsString]), Failure> {
        let Some(typed) = words.first().and_then(|word| word.to_str()) else {
            return Ok((self.plan(None, ui)?, words));
        };
        let named = self.manager.resolve_plan(Some(typed), &self.directory);
        // The beginning of a name, or of an id, is a plan where it is no path.
        let is_path = match &named {
            Ok(plan) => plan.name != typed && plan.id.to_string() != typed && exists(&words[0]),
            Err(Error::AmbiguousPlan { .. }) => exists(&words[0]),
            Err(Error::UnknownPlan { .. }) => {
                !typed.starts_with(PlanId::PREFIX) || exists(&words[0])
            }
            Err(_) => false,
        };
        if !is_path {
            let plan = named?;
            tell_plan(Some(typed), &plan, ui);
            return Ok((plan, &words[1..]));
        }
        // A path of the plan that is open here, if there is one.
        match (self.manager.resolve_plan(None, &self.directory), named) {
            (Err(Error::SeveralPlans { .. }), Err(named)) if !exists(&words[0]) => {
                Err(named.into())
            }
            (Ok(_) | Err(Error::SeveralPlans { .. }), _) => Ok((self.plan(None, ui)?, words)),
            (Err(_), named) => Ok((named?, &words[1..])),
        }
    }

    /// The plan that was typed, or the one of this directory that was committed last, which is named then.
    pub(crate) fn committed_plan(&self, typed: Option<&str>, ui: &Ui) -> Result<Plan, Failure> {
        let plan = self.manager.resolve_committed(typed, &self.directory)?;
        tell_plan(typed, &plan, ui);
        Ok(plan)
    }

    /// The plan and the resource that were typed, and the `rest` words behind them. The plan may
    /// be left out.
    pub(crate) fn target<'a>(
        &self,
        words: &'a [OsString],
        rest: usize,
        ui: &Ui,
    ) -> Result<(Plan, Resource, &'a [OsString]), Failure> {
        let (typed, words) = match words.len() > rest + 1 {
            // What is not UTF-8 names no plan, and must not count as left out.
            true => (Some(words[0].to_string_lossy()), &words[1..]),
            false => (None, words),
        };
        let missing = |plan: &Plan| {
            Failure::usage(format!(
                "'{}' is a plan; an argument after it is missing",
                plan.name
            ))
            .hint("the order is [PLAN] RESOURCE, and then what is to be done with it")
        };
        // The first word may be a plan whose resource, or path, was forgotten.
        let forgotten = || match &typed {
            Some(_) => None,
            None => words[0]
                .to_str()
                .and_then(|word| self.plan(Some(word), ui).ok()),
        };
        let plan = match self.plan(typed.as_deref(), ui) {
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

/// The plan that the user chooses on a terminal where several are open; elsewhere, and for any other error, that error.
pub(crate) fn choose(error: Error, ui: &Ui) -> Result<Plan, Failure> {
    if let Error::SeveralPlans { plans, .. } = &error
        && ui.asks()
        && !ui.is_json()
    {
        ui.say(&format!("{} plans are open here:", plans.len()));
        for plan in plans {
            let made = show::timestamp(plan.created_at);
            ui.say(&format!("  {}  made {made}", plan.name));
        }
        let first = plans.first().map_or("", |plan| &plan.name);
        while let Some(PromptAnswer::Word(word)) = ui.ask(&format!("Which one, as in {first}?")) {
            if let Some(plan) = plans.iter().find(|plan| plan.name == word) {
                return Ok(plan.clone());
            }
            if word.is_empty() {
                break;
            }
        }
    }
    Err(error.into())
}

/// Says which plan is meant where none was typed; hints are about that plan.
fn tell_plan(typed: Option<&str>, plan: &Plan, ui: &Ui) {
    ui.about_plan(&plan.name);
    if typed.is_none() {
        ui.say(&format!("plan {}", plan.name));
    }
}

/// Where this program lies.
pub(crate) fn program() -> Location {
    let found = std::env::current_exe();
    Location::from(found.unwrap_or_else(|_| PathBuf::from("escrow")))
}

/// What is said where a file system fails under memory that is mapped from one of its files, such as that of the state.
const BUS_ERROR: &[u8] =
    b"error: a file system in use failed, which may be that of the state (SIGBUS)
hint: `escrow recover` finishes or takes back what was interrupted, as soon as it works again
";

/// Ends the process with an error of its own where the kernel would kill it because a file system failed.
#[allow(
    unsafe_code,
    reason = "a handler of one's own has no safe form; this one writes a line and ends the process"
)]
pub(crate) fn tell_bus_errors() {
    let handle = || match rustix::io::write(rustix::stdio::stderr(), BUS_ERROR) {
        Ok(_) | Err(_) => signal_hook::low_level::exit(RECOVERY_NEEDED.into()),
    };
    // SAFETY: the handler takes no lock and no memory; what it calls may be called in one.
    match unsafe { signal_hook::low_level::register(signal_hook::consts::SIGBUS, handle) } {
        Ok(_) | Err(_) => {}
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

/// Where the supervisor listens, if this runs inside `escrow run`.
pub(crate) fn socket() -> Option<PathBuf> {
    variable("ESCROW_SOCKET").map(PathBuf::from)
}

/// Where the user stands, if that is still there.
pub(crate) fn here() -> Option<PathBuf> {
    std::env::current_dir().ok()
}

/// Whether a process of this user works in one of these directories.
pub(crate) fn works_below(directories: &[PathBuf]) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut places = processes.filter_map(|process| process.path().join("cwd").read_link().ok());
    places.any(|place| directories.iter().any(|one| place.starts_with(one)))
}

/// The directory in which an agent keeps its configuration: that of its variable, else one in the home directory.
pub(crate) fn agent_home(name: &str, usual: &str) -> Option<PathBuf> {
    let named = variable(name).map(PathBuf::from);
    named.or_else(|| Some(user_home()?.join(usual)))
}

/// The home directory of the user.
pub(crate) fn user_home() -> Option<PathBuf> {
    variable("HOME").map(PathBuf::from)
}

/// The shell of the user.
pub(crate) fn shell() -> Option<OsString> {
    variable("SHELL")
}

/// The program by which the user edits or looks at files, as a line of the shell.
pub(crate) fn editor() -> OsString {
    let named = variable("VISUAL").or_else(|| variable("EDITOR"));
    named.unwrap_or_else(|| "xdg-open".into())
}

/// The command by which the user reads long output, as git finds it; `None` where there is none, or the terminal cannot.
pub(crate) fn pager() -> Option<std::process::Command> {
    if variable("TERM").is_none_or(|term| term == "dumb") {
        return None;
    }
    // From the root directory, so that no repository names it.
    let asked = std::process::Command::new("git")
        .args(["-C", "/", "var", "GIT_PAGER"])
        .output();
    let told = match asked {
        Ok(told) if told.status.success() => {
            let text = told.stdout.strip_suffix(b"\n").unwrap_or(&told.stdout);
            OsString::from_vec(text.to_vec())
        }
        _ => variable("PAGER").unwrap_or_else(|| "less".into()),
    };
    if told.is_empty() || told == "cat" {
        return None;
    }
    let mut pager = std::process::Command::new("sh");
    pager.arg("-c").arg(&told);
    for (name, value) in [("LESS", "FRX"), ("LV", "-c")] {
        if std::env::var_os(name).is_none() {
            pager.env(name, value);
        }
    }
    Some(pager)
}

/// A path as seen from the root directory, by its words alone: what it names need not be there.
pub(crate) fn absolute(path: &OsStr) -> PathBuf {
    let mut all = std::env::current_dir().unwrap_or_default();
    for part in std::path::Path::new(path).components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => drop(all.pop()),
            part => all.push(part),
        }
    }
    all
}

/// Whether something is at a path.
pub(crate) fn exists(path: &OsStr) -> bool {
    std::path::Path::new(path).symlink_metadata().is_ok()
}

/// Goes to another directory, before anything is looked at.
pub(crate) fn go_to(directory: &std::path::Path) -> Result<(), Failure> {
    std::env::set_current_dir(directory).map_err(|error| {
        let directory = Location::from(directory);
        Failure::usage(format!("cannot go to the directory '{directory}': {error}"))
    })
}

/// What commands share with this program: its standard input, the terminal and signals.
struct Terminal;

impl Console for Terminal {
    fn attach(&self) -> std::io::Result<Attached> {
        let (terminal, front) = terminal();
        let (signals, guard) = watch_signals()?;
        Ok(Attached {
            terminal,
            front,
            signals,
            guard: Some(Box::new(guard)),
        })
    }

    fn input(&self) -> bool {
        true
    }

    fn waits(&self, what: &str) {
        ui::talk(what);
    }

    fn begins(&self, how: &str) {
        ui::talk(&format!("{} {how}", paint(Tone::Careful, "warning:")));
    }

    fn files(&self) -> Option<u64> {
        files_before()
    }
}

/// Whether a user types at a terminal and reads there.
pub(crate) fn is_typed() -> bool {
    use std::io::IsTerminal;
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// The terminal that we were started from, and whether it is ours to hand over at once: we stand in
/// front, and no process beside us in a pipeline may need it.
fn terminal() -> (Option<OwnedFd>, bool) {
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

/// While this lives, signals are the command's and not ours.
struct PassedOn;

/// The signals that are passed on to a command, each readable when it comes.
fn watch_signals() -> std::io::Result<(Vec<(i32, OwnedFd)>, PassedOn)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use signal_hook::consts::{
        SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
    };
    let mut all = Vec::new();
    for signal in [
        SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2, SIGWINCH,
    ] {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (read, write) = pair?;
        signal_hook::low_level::pipe::register(signal, write)?;
        all.push((signal, read));
    }
    PASSED_ON.store(true, Ordering::SeqCst);
    Ok((all, PassedOn))
}

impl Drop for PassedOn {
    fn drop(&mut self) {
        PASSED_ON.store(false, Ordering::SeqCst);
    }
}

/// The caller's variable of a name, also one that is empty.
pub(crate) fn callers_variable(name: &OsStr) -> Option<OsString> {
    std::env::var_os(name)
}

/// The variable that leads most programs to their database.
pub(crate) fn database_url() -> Option<(String, String)> {
    let name = "DATABASE_URL";
    let value = variable(name)?.into_string().ok()?;
    Some((name.to_owned(), value))
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
