//! The retention period, as it is written in the configuration.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::model::units;

/// How long something is kept; seven days unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String", extend("pattern" = "^[0-9]+[smhdw]$"))]
pub struct RetentionPeriod(pub Duration);

impl Default for RetentionPeriod {
    fn default() -> Self {
        Self(Duration::from_secs(7 * 24 * 60 * 60))
    }
}

impl TryFrom<String> for RetentionPeriod {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        units::duration(&text).map(Self)
    }
}
