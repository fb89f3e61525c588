//! Durations and sizes as users write them: `7d`, `10G`.

use std::time::Duration;

/// Reads a duration: a number and one of `s`, `m`, `h`, `d`, `w`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || {
        format!("invalid duration '{text}': write a number and s, m, h, d or w, as in 7d or 12h")
    };
    let (number, unit) = split(text);
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        "w" => 7 * 24 * 60 * 60,
        _ => return Err(bad()),
    };
    let number: Option<u64> = number.parse().ok();
    let seconds = number.and_then(|number| number.checked_mul(seconds));
    seconds.map(Duration::from_secs).ok_or_else(bad)
}

/// Reads a number of bytes: alone, or with one of `K`, `M`, `G`, `T`, which are powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let unit = unit.to_ascii_uppercase();
    let unit = unit.strip_suffix('B').unwrap_or(&unit);
    let power = match unit.strip_suffix('I').unwrap_or(unit) {
        "" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => {
            return Err(format!(
                "invalid size '{text}': write 500M, 10G or a number of bytes"
            ));
        }
    };
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(1024u64.pow(power)))
        .ok_or_else(|| format!("invalid size '{text}': write 500M, 10G or a number of bytes"))
}

/// Reads a number of processors, as in `2` or `0.5`: thousandths of one.
pub fn processors(text: &str) -> Result<u64, String> {
    let number: Option<f64> = text.parse().ok();
    let thousandths = number.map(|number| number * 1000.0);
    match thousandths {
        Some(found) if (10.0..1e9).contains(&found) => Ok(found as u64),
        _ => Err(format!(
            "invalid number of processors '{text}': write 2 or 0.5"
        )),
    }
}

/// The digits that a text begins with, and the rest.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_they_are_written() {
        let seconds = |text| duration(text).map(|found| found.as_secs());
        assert_eq!(seconds("45s"), Ok(45));
        assert_eq!(seconds("30m"), Ok(1800));
        assert_eq!(seconds("12h"), Ok(43_200));
        assert_eq!(seconds("7d"), Ok(604_800));
        assert_eq!(seconds("2w"), Ok(1_209_600));
        for text in [
            "",
            "7",
            "d",
            "7 d",
            "-1d",
            "1.5h",
            "99999999999999999999d",
            "7D",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!((processors("2"), processors("0.5")), (Ok(2000), Ok(500)));
        for text in ["", "x", "0", "-1", "nan", "inf", "1e9"] {
            assert!(processors(text).is_err(), "{text}");
        }
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("123"), Ok(123));
        assert_eq!(size("2K"), Ok(2048));
        assert_eq!(size("10G"), Ok(10 << 30));
        assert_eq!(size("1tb"), Ok(1 << 40));
        assert_eq!(size("5MiB"), Ok(5 << 20));
        for text in ["", "G", "10X", "-1G", "1.5G", "99999999999T", "1 G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
