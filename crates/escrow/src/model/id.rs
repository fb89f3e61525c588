//! Identifiers that sort by creation time, and the one source of time and randomness.
//!
//! An id is a version 7 UUID shown as a prefix and 26 lower-case base32 characters
//! (`plan_01k9…`): safe in file names and shells, and the prefix says what it names.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use uuid::Uuid;

/// Where ids and the time come from. Handed in, so that tests can decide both.
pub trait IdSource: Send + Sync {
    /// The time now. Shown to people and stored; only how long finished things stay is decided by it.
    fn now(&self) -> Timestamp;
    /// A fresh time-ordered UUID.
    fn uuid(&self) -> Uuid;
}

/// The clock and the randomness of the machine.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemIdSource;

impl IdSource for SystemIdSource {
    fn now(&self) -> Timestamp {
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place that asks the clock"
        )]
        Timestamp::now()
    }

    fn uuid(&self) -> Uuid {
        Uuid::now_v7()
    }
}

/// A text that is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an id of this kind")]
pub struct InvalidId(pub String);

/// Crockford's alphabet in lower case: no i, l, o, u.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

fn encode(value: u128) -> String {
    (0..26)
        .rev()
        .map(|digit| char::from(ALPHABET[((value >> (digit * 5)) & 31) as usize]))
        .collect()
}

fn decode(text: &str) -> Option<u128> {
    if text.len() != 26 || text.as_bytes()[0] > b'7' {
        return None;
    }
    text.bytes().try_fold(0u128, |value, byte| {
        let digit = ALPHABET.iter().position(|known| *known == byte)?;
        Some((value << 5) | digit as u128)
    })
}

macro_rules! id {
    ($name:ident, $prefix:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// What every id of this kind begins with.
            pub const PREFIX: &str = $prefix;

            /// A fresh id.
            pub fn new(origin: &dyn IdSource) -> Self {
                Self(origin.uuid())
            }

            /// When it was made; `None` where it does not say.
            pub fn made_at(self) -> Option<Timestamp> {
                let (seconds, nanoseconds) = self.0.get_timestamp()?.to_unix();
                let seconds = i64::try_from(seconds).ok()?;
                Timestamp::new(seconds, i32::try_from(nanoseconds).ok()?).ok()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", $prefix, encode(self.0.as_u128()))
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                text.strip_prefix($prefix)
                    .and_then(decode)
                    .map(|value| Self(Uuid::from_u128(value)))
                    .ok_or_else(|| InvalidId(text.to_owned()))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(PlanId, "plan_", "Names a plan.");
id!(ResourceId, "res_", "Names a resource.");
id!(SandboxId, "sbx_", "Names a sandbox.");
id!(CheckpointId, "chk_", "Names a checkpoint of a plan.");
id!(CommitId, "com_", "Names one commit of a plan.");
id!(OperationId, "op_", "Names an entry of the operation log.");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_the_round_trip_and_sort_by_time() {
        let first = PlanId::new(&SystemIdSource);
        let second = PlanId::new(&SystemIdSource);
        assert_eq!(first.to_string().parse::<PlanId>(), Ok(first));
        assert!(first.to_string() < second.to_string());
        assert_eq!(first.to_string().len(), "plan_".len() + 26);
        let made = first.made_at().expect("it says so");
        assert!(made <= second.made_at().expect("it says so"));
        assert!(made.as_second() > 1_700_000_000);
    }

    #[test]
    fn an_id_of_another_kind_is_refused() {
        let plan = PlanId::new(&SystemIdSource).to_string();
        assert!(plan.parse::<SandboxId>().is_err());
        assert!("plan_".parse::<PlanId>().is_err());
        assert!("plan_zzzzzzzzzzzzzzzzzzzzzzzzzz".parse::<PlanId>().is_err());
    }
}
