//! How long something is kept, as it is written in the configuration.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::model::amount;

/// How long something is kept; seven days unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String", extend("pattern" = "^[0-9]+[smhdw]$"))]
pub struct Keep(pub Duration);

impl Default for Keep {
    fn default() -> Self {
        Self(Duration::from_secs(7 * 24 * 60 * 60))
    }
}

impl TryFrom<String> for Keep {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        amount::duration(&text).map(Self)
    }
}
