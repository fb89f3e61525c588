//! The handshake: what a program says of itself before anything is asked of it, and whether that can be (rule X2).

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::registry::VERBS;
use super::super::{Base, Capabilities, Checkpoints, Exposes};

/// What a program may have beside the nine verbs.
const OPTIONAL: [&str; 13] = [
    "probe",
    "preview",
    "prepare",
    "undo",
    "outcome",
    "check_undo",
    "finish",
    "fork",
    "access",
    "retain",
    "fixture",
    "fixture_contents",
    "fixture_change",
];

/// Every method of the protocol.
pub fn methods() -> impl Iterator<Item = &'static str> {
    ["initialize"].into_iter().chain(VERBS).chain(OPTIONAL)
}

/// The version of the protocol that is spoken here.
pub(super) const VERSION: u64 = 1;

/// What a program says of itself.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::strategy) struct Handshake {
    pub(super) methods: Vec<String>,
    pub(super) capabilities: Capabilities,
    /// The types of resources that it serves; `*` stands for every one.
    pub(super) resource_types: Vec<String>,
}

#[derive(Deserialize)]
struct WireHandshake {
    methods: Vec<String>,
    #[serde(default)]
    capabilities: WireCapabilities,
    #[serde(default)]
    resource_types: Vec<String>,
    #[serde(default)]
    needs_area: bool,
}

/// What a program promises; what it does not say follows from its methods, or is what most do.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WireCapabilities {
    isolates: Option<bool>,
    base: Option<Base>,
    prepares: Option<bool>,
    undoes: Option<bool>,
    survives: Option<bool>,
    retryable: Option<bool>,
    checkpoints: Option<Checkpoints>,
    live: Option<bool>,
    exposes: Option<Exposes>,
    strength: Option<u8>,
}

/// Why a program cannot be a strategy.
#[derive(Debug, PartialEq)]
pub(super) enum Unfit {
    /// It lacks these verbs.
    Lacks(Vec<String>),
    /// What it says cannot be.
    Says(String),
}

impl Handshake {
    /// Whether it has a method.
    pub(super) fn has(&self, method: &str) -> bool {
        self.methods.iter().any(|one| one == method)
    }

    /// Whether it serves a type, or the type that it extends.
    pub(in crate::strategy) fn serves(&self, kind: &str, base: &str) -> bool {
        let mut types = self.resource_types.iter();
        types.any(|one| one == "*" || one == kind || one == base)
    }

    /// Reads the answer to `initialize`, and checks that it fits together.
    pub(super) fn read(answer: &Value) -> Result<Self, Unfit> {
        let says = |what: String| Unfit::Says(what);
        match answer.get("protocol_version").and_then(Value::as_u64) {
            Some(VERSION) => {}
            Some(other) => {
                return Err(says(format!(
                    "it speaks version {other} of the protocol, and this Escrow speaks version {VERSION}"
                )));
            }
            None => return Err(says("it does not say which protocol it speaks".to_owned())),
        }
        let wire: WireHandshake = serde_json::from_value(answer.clone())
            .map_err(|error| says(format!("what it says of itself cannot be read: {error}")))?;
        let has = |method: &str| wire.methods.iter().any(|one| one == method);
        let lacks = VERBS.into_iter().filter(|verb| !has(verb));
        let lacks: Vec<String> = lacks.map(str::to_owned).collect();
        if !lacks.is_empty() {
            return Err(Unfit::Lacks(lacks));
        }
        let said = &wire.capabilities;
        let exposes = said.exposes.unwrap_or(Exposes::Nothing);
        for (claimed, method, capability) in [
            (said.prepares == Some(true), "prepare", "prepares"),
            (said.undoes == Some(true), "undo", "undoes"),
            (exposes != Exposes::Nothing, "access", "exposes"),
        ] {
            if claimed && !has(method) {
                return Err(says(format!(
                    "it claims `{capability}`, and has no method `{method}`"
                )));
            }
        }
        if said.prepares == Some(false) && has("prepare") {
            return Err(says(
                "it says that it does not prepare, and has a method `prepare`".to_owned(),
            ));
        }
        let capabilities = Capabilities {
            isolates: said.isolates.unwrap_or(true),
            base: said.base.unwrap_or(Base::Frozen),
            prepares: has("prepare"),
            // One that has the method may need it only to release what was prepared, and says so.
            undoes: said.undoes.unwrap_or_else(|| has("undo")),
            promises: false,
            survives: said.survives.unwrap_or(true),
            retryable: said.retryable.unwrap_or(true),
            // The protocol has no changes beside a sandbox.
            reopens: false,
            checkpoints: said.checkpoints.unwrap_or(Checkpoints::Copy),
            // The protocol has no commits of parts.
            partial: false,
            live: said.live.unwrap_or(false),
            exposes,
            area: wire.needs_area,
            strength: said.strength.unwrap_or(4),
        };
        Ok(Self {
            methods: wire.methods,
            capabilities,
            resource_types: wire.resource_types,
        })
    }
}

/// What the engine says of itself.
pub(super) fn greeting(strategy: &str, options: &Value, scratch: &str) -> Value {
    json!({
        "protocol_version": VERSION,
        "engine": {"name": "escrow", "version": env!("CARGO_PKG_VERSION")},
        "strategy": strategy,
        "options": options,
        "scratch": scratch,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(methods: &[&str], capabilities: Value) -> Result<Handshake, Unfit> {
        let methods: Vec<&str> = VERBS.iter().chain(methods).copied().collect();
        Handshake::read(&json!({
            "protocol_version": 1, "methods": methods, "capabilities": capabilities,
        }))
    }

    // rule X2
    #[test]
    fn promises_follow_from_methods_and_must_not_contradict_them() {
        let plain = said(&[], json!({})).expect("it is whole").capabilities;
        assert!(plain.isolates && !plain.prepares && !plain.undoes);
        let whole = said(&["prepare", "undo", "access"], json!({"exposes": "path"}));
        let whole = whole.expect("it is whole").capabilities;
        assert!(whole.prepares && whole.undoes && whole.exposes == Exposes::Path);
        let releasing = said(&["prepare", "undo"], json!({"undoes": false}));
        assert!(!releasing.expect("it is whole").capabilities.undoes);
        for (methods, promises) in [
            (&[][..], json!({"undoes": true})),
            (&[], json!({"prepares": true})),
            (&["prepare"], json!({"prepares": false})),
            (&[], json!({"exposes": "url"})),
            (&[], json!({"isolates": "perhaps"})),
            (&[], json!({"partial": true})),
        ] {
            let refused = said(methods, promises.clone());
            assert!(matches!(refused, Err(Unfit::Says(_))), "{promises}");
        }
    }

    // rule X2, P2
    #[test]
    fn what_lacks_is_named_and_another_version_is_refused() {
        let lacks = json!({"protocol_version": 1, "methods": ["create", "read", "write", "diff",
            "commit", "rollback", "cleanup"]});
        let missing = ["checkpoint", "restore_checkpoint"].map(str::to_owned);
        assert_eq!(Handshake::read(&lacks), Err(Unfit::Lacks(missing.to_vec())));
        for version in [json!(2), json!("1"), Value::Null] {
            let answer = json!({"protocol_version": version, "methods": VERBS});
            assert!(matches!(Handshake::read(&answer), Err(Unfit::Says(_))));
        }
    }
}
