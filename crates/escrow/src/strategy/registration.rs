//! A strategy as it is registered: what it serves, what happens where it does not work, and whether it is a program.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Strategy;
use super::alias::Alias;
use super::plugin::{Plugin, PluginFixture, Program, ProgramContext, ProgramSpec, Unusable};
use super::registry::{RegistryError, VERBS};
use crate::model::ResourceType;

/// What happens when a strategy is asked for by name and its probe says no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fallback {
    /// The sandbox is refused, with the probe's reason.
    Refuse,
    /// The strategy is used all the same; it knows what to do instead and says so.
    Anyway,
    /// What `auto` takes without it is used.
    Auto,
    /// Another strategy is used, where the type of the resource takes it.
    Use(String),
}

/// A strategy as it is registered.
#[derive(Clone)]
pub struct Registration {
    pub(super) strategy: Arc<dyn Strategy>,
    pub(super) verbs: Vec<String>,
    pub(super) fallback: Fallback,
    pub(super) types: Vec<String>,
    /// The program that it is, if it is one.
    program: Option<Arc<Program>>,
    /// The strategy of which it is another name.
    alias_of: Option<String>,
}

/// A strategy that a configuration declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeclaredStrategy {
    /// A program.
    Program(ProgramSpec),
    /// Another name of a strategy.
    Alias {
        /// The name.
        name: String,
        /// The strategy.
        of: String,
    },
}

impl Registration {
    /// A strategy that serves every verb, as the compiler makes sure of one written in Rust, and is refused where its
    /// probe says no.
    pub fn new(strategy: Arc<dyn Strategy>) -> Self {
        Self {
            strategy,
            verbs: VERBS.map(str::to_owned).to_vec(),
            fallback: Fallback::Refuse,
            types: Vec::new(),
            program: None,
            alias_of: None,
        }
    }

    /// A program, which is not started yet.
    pub(super) fn program(spec: ProgramSpec, context: &ProgramContext) -> Self {
        let program = Arc::new(Program::new(spec, context.clone()));
        let strategy: Arc<dyn Strategy> = Arc::new(Plugin::new(Arc::clone(&program)));
        Self {
            program: Some(program),
            ..Self::new(strategy)
        }
    }

    /// The same strategy under another name.
    pub(super) fn alias(&self, name: &str) -> Self {
        Self {
            strategy: Arc::new(Alias::new(name, &self.strategy)),
            alias_of: Some(self.name().to_owned()),
            ..self.clone()
        }
    }

    /// Makes sure that it can be asked: starts a program, if it was not asked yet, and checks what it says of itself (rule X2).
    pub fn ready(&self) -> Result<&Arc<dyn Strategy>, RegistryError> {
        let name = self.strategy.name().to_owned();
        match self.program.as_ref().map(|program| program.handshake()) {
            None | Some(Ok(_)) => Ok(&self.strategy),
            Some(Err(Unusable::Fails(error))) => Err(RegistryError::Program(Box::new(error))),
            Some(Err(Unusable::Lacks(missing))) => Err(RegistryError::Incomplete { name, missing }),
        }
    }

    /// The originals that a program makes for the conformance suite, in a directory; `None` where it makes none.
    pub fn fixture(&self, directory: &Path) -> Option<PluginFixture> {
        let program = self.program.as_ref()?;
        PluginFixture::of(program, directory)
    }

    /// Kills a program in the middle of the next call of a method, after this time: for the conformance suite.
    pub fn kill_in(&self, method: &str, after: Duration) {
        if let Some(program) = &self.program {
            program.kill_in(method, after);
        }
    }

    /// Whether it comes with the engine, or was registered by its caller.
    pub fn is_builtin(&self) -> bool {
        self.program.is_none() && self.alias_of.is_none()
    }

    /// Whether asking it starts nothing: it is no program, or one that was asked before.
    pub fn is_started(&self) -> bool {
        let program = self.program.as_ref();
        program.is_none_or(|program| program.known().is_some())
    }

    /// Whether it is a program of the user's own.
    pub fn is_program(&self) -> bool {
        self.program.is_some()
    }

    /// Whether resources of a type may have it: the type names it, or it is a program and says that it serves the type.
    pub(super) fn is_taken_by(&self, kind: &ResourceType) -> bool {
        let name = self.alias_of.as_deref();
        let mut allowed = kind.allowed.iter();
        let listed = allowed.any(|one| one == self.strategy.name() || Some(one.as_str()) == name);
        let said = self.program.as_ref().map(|program| program.handshake());
        listed || said.is_some_and(|said| said.is_ok_and(|one| one.serves(&kind.name, &kind.base)))
    }

    /// The types that it serves, of those that come with the engine: others may then be registered under its name for other
    /// types. One that names none serves every type, and has its name for itself. The metadata of its sandboxes is an object.
    #[must_use]
    pub fn only_for(mut self, types: &[&str]) -> Self {
        self.types = types.iter().map(|&one| one.to_owned()).collect();
        self
    }

    /// The verbs that it serves, as a program lists them in its handshake.
    #[must_use]
    pub fn serving(mut self, verbs: impl IntoIterator<Item = String>) -> Self {
        self.verbs = verbs.into_iter().collect();
        self
    }

    /// What happens when its probe says no.
    #[must_use]
    pub fn or(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// The types that it serves; empty for one that serves every type.
    pub fn types(&self) -> &[String] {
        &self.types
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.strategy.name()
    }

    /// The strategy; a program may not have been started, and [`ready`](Self::ready) makes sure that it is.
    pub fn strategy(&self) -> &Arc<dyn Strategy> {
        &self.strategy
    }

    /// Whether it serves a type that comes with the engine, or those that extend it.
    pub fn serves(&self, base: &str) -> bool {
        self.types.is_empty() || self.types.iter().any(|one| one == base)
    }

    /// Whether both could be meant by one name for one type.
    pub(super) fn collides(&self, other: &Self) -> bool {
        let same_type = || self.types.iter().any(|one| other.serves(one));
        self.strategy.name() == other.strategy.name()
            && (self.types.is_empty() || other.types.is_empty() || same_type())
    }
}

impl DeclaredStrategy {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Program(spec) => &spec.name,
            Self::Alias { name, .. } => name,
        }
    }
}
