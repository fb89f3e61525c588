//! Lengths of time as people write them: `7d`, `12h`, `30m`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

const UNITS: [(char, u64); 5] = [
    ('s', 1),
    ('m', 60),
    ('h', 60 * 60),
    ('d', 24 * 60 * 60),
    ('w', 7 * 24 * 60 * 60),
];

/// The length of time that a text means: a number, then `s`, `m`, `h`, `d` or `w`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || {
        format!(
            "'{text}' is no length of time: write a number and s, m, h, d or w, as in 7d or 12h"
        )
    };
    let unit = text.chars().next_back().ok_or_else(bad)?;
    let number = &text[..text.len() - unit.len_utf8()];
    let seconds = UNITS.iter().find(|(name, _)| *name == unit);
    let (_, seconds) = seconds.ok_or_else(bad)?;
    // A sign is no digit, though the standard library would take it.
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| digits).ok_or_else(bad)?;
    let all = number.checked_mul(*seconds).ok_or_else(bad)?;
    Ok(Duration::from_secs(all))
}

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
        parse_duration(&text).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_have_a_number_and_a_unit() {
        let seconds = |text| parse_duration(text).map(|length| length.as_secs());
        for (text, expected) in [
            ("0s", 0),
            ("45s", 45),
            ("30m", 1800),
            ("12h", 43_200),
            ("7d", 604_800),
            ("2w", 1_209_600),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "7",
            "d",
            "7 d",
            "+7d",
            "-7d",
            "7.5d",
            "7D",
            "7é",
            "9999999999999999999w",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
