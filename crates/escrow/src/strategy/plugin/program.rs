//! A program that is a strategy: started when it is first needed, started again when it ended between two calls.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::channel::{CallFailure, Channel, WireError};
use super::error::{PluginError, PluginFault, shown};
use super::handshake::{Handshake, Unfit, greeting};
use super::process::{Launch, Process};
use super::sdk;
use crate::event::{Observer, Unobserved};
use crate::fs::Dir;
use crate::fs::state_dir::ScratchDir;
use crate::model::text::Location;
use crate::model::{Options, SandboxId, SystemIdSource};

/// How long a call may take, unless the configuration says otherwise.
const LIMIT: Duration = Duration::from_secs(300);

/// How long a program may take until it answers for the first time.
const GREETING: Duration = Duration::from_secs(60);

/// Variables that a program gets of the environment; the others are given by name.
const KEPT: [&str; 9] = [
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
];

/// What is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramLaunch {
    /// A program and its arguments.
    Command(Vec<String>),
    /// A class of Python, through the SDK.
    Class(PythonClass),
}

/// A class of Python, and where its module is searched. The directory in which the program is started is not searched by itself: a
/// file in it would stand for a part of Python, or for a module of the user's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonClass {
    /// Its name, `module:ClassName`.
    pub name: String,
    /// Directories that are searched before what is installed.
    pub first: Vec<PathBuf>,
    /// Directories that are searched after that.
    pub last: Vec<PathBuf>,
}

/// A strategy that is a program, as the configuration declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramSpec {
    /// The name of the strategy.
    pub name: String,
    /// What is started.
    pub launch: ProgramLaunch,
    /// Where it is started: relative words and modules count from here.
    pub directory: PathBuf,
    /// What it is given.
    pub options: Options,
    /// Variables of its environment; those without a value are the caller's.
    pub env: BTreeMap<String, Option<String>>,
    /// How long a call may take, by method; `*` stands for the others.
    pub limits: BTreeMap<String, Duration>,
}

/// What programs are given of the process that starts them.
#[derive(Debug, Clone, Default)]
pub struct ProgramContext {
    /// The directory in which each has one of its own while it runs.
    pub scratch: PathBuf,
    /// The environment, of which a program gets little.
    pub environment: Vec<(OsString, OsString)>,
}

/// Why a program cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::strategy) enum Unusable {
    /// It lacks these verbs.
    Lacks(Vec<String>),
    /// It cannot be started, or talked to.
    Fails(PluginError),
}

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum Failed {
    /// The program answered so.
    Answered(WireError),
    /// The program broke down.
    Broken(PluginError),
}

/// A program, running or not.
pub(in crate::strategy) struct Program {
    pub(super) spec: ProgramSpec,
    context: ProgramContext,
    state: Mutex<State>,
    known: OnceLock<Handshake>,
    /// The method in the middle of which it is killed next, and after which time: for the conformance suite.
    killed_in: Mutex<Option<(String, Duration)>>,
}

/// What there is of a program while this lives.
#[derive(Default)]
struct State {
    channel: Option<Channel>,
    /// Its directory, which stays when it is started again. Gone after it.
    scratch: Option<ScratchDir>,
}

impl Program {
    pub(in crate::strategy) fn new(spec: ProgramSpec, context: ProgramContext) -> Self {
        Self {
            spec,
            context,
            state: Mutex::default(),
            known: OnceLock::new(),
            killed_in: Mutex::default(),
        }
    }

    /// What it says of itself; starts it if that was never asked.
    pub(in crate::strategy) fn handshake(&self) -> Result<&Handshake, Unusable> {
        if let Some(known) = self.known.get() {
            return Ok(known);
        }
        let mut state = self.state();
        if self.known.get().is_none() {
            let (channel, said) = self.start(&mut state)?;
            state.channel = Some(channel);
            match self.known.set(said) {
                // Under the lock no other thread sets it.
                Ok(()) | Err(_) => {}
            }
        }
        drop(state);
        Ok(self.known.get().expect("it was set just now"))
    }

    /// What it said of itself, if it was ever asked.
    pub(in crate::strategy) fn known(&self) -> Option<&Handshake> {
        self.known.get()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its directory, where contents lie that are too large for a message.
    pub(super) fn scratch(&self) -> Result<Dir, PluginError> {
        let mut state = self.state();
        let scratch = self.scratch_of(&mut state)?;
        Dir::open(scratch.path()).map_err(|error| self.not_started("open its directory", &error))
    }

    fn scratch_of<'a>(&self, state: &'a mut State) -> Result<&'a ScratchDir, PluginError> {
        if state.scratch.is_none() {
            let unique = SandboxId::new(&SystemIdSource).to_string();
            let made = Dir::open(&self.context.scratch)
                .and_then(|parent| ScratchDir::make(parent, "scratch-plugin-", &unique));
            let made = made.map_err(|error| self.not_started("make a directory for it", &error))?;
            if matches!(self.spec.launch, ProgramLaunch::Class(_)) {
                sdk::unpack(made.path())
                    .map_err(|error| self.not_started("unpack the SDK", &error))?;
            }
            state.scratch = Some(made);
        }
        Ok(state.scratch.as_ref().expect("it was made just now"))
    }

    /// Calls a method.
    pub(super) fn call(
        &self,
        verb: &str,
        params: &Value,
        observer: &dyn Observer,
    ) -> Result<Value, Failed> {
        let mut state = self.state();
        let channel = self.ensure(&mut state).map_err(Failed::Broken)?;
        let killing = self.is_killed_in(verb);
        let killing = killing.map(|after| channel.process.kill_after(after));
        let answer = channel.call(verb, params, self.limit(verb), observer);
        if let Some(killing) = killing {
            match killing.join() {
                // It sleeps and kills, and does nothing else.
                Ok(()) | Err(_) => {}
            }
            if answer.is_ok() {
                state.channel = None;
            }
        }
        match answer {
            Ok(result) => Ok(result),
            Err(CallFailure::Answered(error)) => Err(Failed::Answered(error)),
            Err(CallFailure::Broken(fault)) => {
                let error = match state.channel.take() {
                    Some(channel) => self.ended(verb, fault, channel.process),
                    None => self.error(verb, fault, Vec::new()),
                };
                Err(Failed::Broken(error))
            }
        }
    }

    /// Kills it in the middle of the next call of a method.
    pub(in crate::strategy) fn kill_in(&self, verb: &str, after: Duration) {
        let mut killed_in = self
            .killed_in
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *killed_in = Some((verb.to_owned(), after));
    }

    fn is_killed_in(&self, verb: &str) -> Option<Duration> {
        let mut killed_in = self
            .killed_in
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = killed_in.take_if(|(method, _)| method == verb);
        now.map(|(_, after)| after)
    }

    fn limit(&self, verb: &str) -> Duration {
        let limits = &self.spec.limits;
        let said = limits.get(verb).or_else(|| limits.get("*"));
        said.copied().unwrap_or(LIMIT)
    }

    /// The running program: one that ended between two calls is started again, and must be what it was.
    fn ensure<'a>(&self, state: &'a mut State) -> Result<&'a mut Channel, PluginError> {
        if state
            .channel
            .as_ref()
            .is_some_and(|one| one.process.has_ended())
        {
            state.channel = None;
        }
        if state.channel.is_none() {
            let (channel, said) = self.start(state).map_err(|why| match why {
                Unusable::Fails(error) => error,
                Unusable::Lacks(missing) => {
                    let what = format!("it lacks {}", missing.join(", "));
                    self.error("initialize", PluginFault::Refused(what), Vec::new())
                }
            })?;
            if self.known.get().is_some_and(|known| *known != said) {
                let what = "it says something else of itself than before".to_owned();
                return Err(self.error("initialize", PluginFault::Refused(what), Vec::new()));
            }
            state.channel = Some(channel);
        }
        Ok(state.channel.as_mut().expect("it was started just now"))
    }

    fn start(&self, state: &mut State) -> Result<(Channel, Handshake), Unusable> {
        let scratch = self.scratch_of(state).map_err(Unusable::Fails)?;
        let mut channel = self.launch(scratch.path()).map_err(Unusable::Fails)?;
        let options = Value::Object(self.spec.options.clone());
        let place = Location::from(scratch.path()).to_string();
        let greeting = greeting(&self.spec.name, &options, &place);
        let limit = self.spec.limits.get("initialize").copied();
        let verb = "initialize";
        let answer = channel.call(verb, &greeting, limit.unwrap_or(GREETING), &Unobserved);
        let fault = match answer {
            Ok(answer) => match Handshake::read(&answer) {
                Ok(said) => return Ok((channel, said)),
                Err(Unfit::Lacks(missing)) => return Err(Unusable::Lacks(missing)),
                Err(Unfit::Says(what)) => PluginFault::Refused(what),
            },
            Err(CallFailure::Answered(error)) => {
                PluginFault::Answered(shown(error.message.as_bytes()))
            }
            Err(CallFailure::Broken(fault)) => fault,
        };
        Err(Unusable::Fails(self.ended(verb, fault, channel.process)))
    }

    fn launch(&self, scratch: &Path) -> Result<Channel, PluginError> {
        let mut environment = self.environment();
        let words: Vec<OsString> = match &self.spec.launch {
            ProgramLaunch::Command(words) => words.iter().map(OsString::from).collect(),
            ProgramLaunch::Class(class) => {
                environment.push(("PYTHONDONTWRITEBYTECODE".into(), "1".into()));
                let mut words = ["python3", "-c", sdk::START].map(OsString::from).to_vec();
                words.push(scratch.join(sdk::DIRECTORY).into());
                words.push(class.name.as_str().into());
                words.push(class.first.len().to_string().into());
                let places = class.first.iter().chain(&class.last);
                words.extend(places.map(OsString::from));
                words
            }
        };
        let started = Process::start(&Launch {
            words: &words,
            directory: &self.spec.directory,
            environment: &environment,
        });
        started.map(Channel::new).map_err(|error| {
            let named = shown(words.first().map_or(&[], |word| word.as_bytes()));
            let what = format!("`{named}`: {error}");
            self.error("initialize", PluginFault::NotStarted(what), Vec::new())
        })
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        let callers = |name: &str| {
            let mut all = self.context.environment.iter();
            all.find(|(one, _)| one == name).cloned()
        };
        let mut environment: Vec<_> = KEPT.into_iter().filter_map(callers).collect();
        for (name, value) in &self.spec.env {
            environment.retain(|(one, _)| one != name.as_str());
            match value {
                Some(value) => environment.push((name.into(), value.into())),
                None => environment.extend(callers(name)),
            }
        }
        environment
    }

    /// What went wrong, once the process is gone.
    fn ended(&self, verb: &str, fault: PluginFault, process: Process) -> PluginError {
        let politely = matches!(fault, PluginFault::Ended(_));
        let (status, said) = process.end(politely);
        let fault = match fault {
            PluginFault::Ended(_) => PluginFault::Ended(status.map(|status| status.to_string())),
            fault => fault,
        };
        self.error(verb, fault, said)
    }

    fn not_started(&self, what: &str, error: &crate::fs::FsError) -> PluginError {
        let what = format!("cannot {what}: {error}: {}", error.cause);
        self.error("initialize", PluginFault::NotStarted(what), Vec::new())
    }

    pub(super) fn error(&self, verb: &str, fault: PluginFault, said: Vec<String>) -> PluginError {
        PluginError {
            strategy: self.spec.name.clone(),
            verb: verb.to_owned(),
            fault,
            said,
        }
    }
}
