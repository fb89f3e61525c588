//! Edits the `hooks` of a JSON file as text: `{"hooks": {EVENT: [ENTRY, …]}}`. Every byte that is not part of an entry stays.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// The members of an object in their order, with their text.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;
            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    all.push((Cow::Owned(key), value));
                }
                Ok(Members(all))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// The range of a part in the whole text.
fn span(whole: &str, part: &str) -> Range<usize> {
    let from = part.as_ptr() as usize - whole.as_ptr() as usize;
    from..from + part.len()
}

/// A member of an object that is not there twice.
fn member<'a>(object: &'a str, key: &str) -> Result<Option<&'a str>, String> {
    let members: Members<'a> = serde_json::from_str(object).map_err(|error| error.to_string())?;
    let mut found = members.0.into_iter().filter(|(name, _)| name == key);
    match (found.next(), found.next()) {
        (Some(_), Some(_)) => Err(format!("it has '{key}' twice")),
        (found, _) => Ok(found.map(|(_, value)| value.get())),
    }
}

fn elements(array: &str) -> Result<Vec<&RawValue>, String> {
    serde_json::from_str(array).map_err(|error| error.to_string())
}

/// Refuses a text that cannot be edited.
pub(super) fn check(text: &str) -> Result<(), String> {
    match member(text, "hooks")? {
        Some(hooks) => member(hooks, "")
            .map(drop)
            .map_err(|error| format!("'hooks': {error}")),
        None => Ok(()),
    }
}

/// The text with `entry` at the end of the event's entries, unless it is there; other entries for which `own` holds are replaced.
pub(super) fn insert(
    text: &str,
    event: &str,
    entry: &Value,
    own: impl Fn(&Value) -> bool,
) -> Result<String, String> {
    let there = entries(text, event)?;
    let mine: Vec<&Value> = there.iter().filter(|one| own(one)).collect();
    if mine.len() == 1 && mine[0] == entry {
        return Ok(text.to_owned());
    }
    let text = remove(text, event, own)?;
    let (step, whole) = (indent(&text), text.trim_end().trim_start());
    let shown = |value: &Value, depth: usize| {
        let lines = serde_json::to_string_pretty(value).expect("a value is JSON");
        let lines: Vec<String> = lines
            .lines()
            .enumerate()
            .map(|(number, line)| match number {
                0 => line.to_owned(),
                _ => {
                    let inner = line.trim_start();
                    let level = depth + (line.len() - inner.len()) / 2;
                    format!("{}{inner}", step.repeat(level))
                }
            })
            .collect();
        lines.join("\n")
    };
    let Some(hooks) = member(&text, "hooks")? else {
        let hooks = serde_json::json!({event: [entry]});
        return Ok(append(
            &text,
            whole,
            &format!("\"hooks\": {}", shown(&hooks, 1)),
            &step,
            0,
        ));
    };
    let Some(array) = member(hooks, event)? else {
        let value = shown(&serde_json::json!([entry]), 2);
        return Ok(append(
            &text,
            hooks,
            &format!("\"{event}\": {value}"),
            &step,
            1,
        ));
    };
    Ok(append(&text, array, &shown(entry, 3), &step, 2))
}

/// The entries of an event.
fn entries(text: &str, event: &str) -> Result<Vec<Value>, String> {
    let Some(hooks) = member(text, "hooks")? else {
        return Ok(Vec::new());
    };
    let array = member(hooks, event)?.map(elements).transpose()?;
    let parse = |one: &RawValue| serde_json::from_str(one.get()).map_err(|error| error.to_string());
    array.unwrap_or_default().into_iter().map(parse).collect()
}

/// Puts a member or an element at the end of a container, which is a part of the text at this depth.
fn append(text: &str, container: &str, new: &str, step: &str, depth: usize) -> String {
    let at = span(text, container);
    let inner = &container[1..container.len() - 1];
    let (outer, own) = (step.repeat(depth), step.repeat(depth + 1));
    let (cut, added) = match inner.trim().is_empty() {
        true => (at.start + 1, format!("\n{own}{new}\n{outer}")),
        false => (
            at.start + 1 + inner.trim_end().len(),
            format!(",\n{own}{new}"),
        ),
    };
    format!("{}{added}{}", &text[..cut], &text[cut..])
}

/// The text without the entries of the event for which `own` holds; an event, and `hooks`, that is empty then goes too.
pub(super) fn remove(
    text: &str,
    event: &str,
    own: impl Fn(&Value) -> bool,
) -> Result<String, String> {
    let mut text = text.to_owned();
    while let Some(position) = entries(&text, event)?.iter().position(&own) {
        let hooks = member(&text, "hooks")?.unwrap_or("{}");
        let array = member(hooks, event)?.unwrap_or("[]");
        let cut = match (elements(array)?.len(), count(hooks)?, count(&text)?) {
            (1, 1, all) => part(&text, text.trim(), place(&text, "hooks")?, all),
            (1, events, _) => part(&text, hooks, place(hooks, event)?, events),
            (many, ..) => part(&text, array, position, many),
        }?;
        text.replace_range(cut, "");
    }
    Ok(text)
}

fn count(object: &str) -> Result<usize, String> {
    let members: Members<'_> = serde_json::from_str(object).map_err(|error| error.to_string())?;
    Ok(members.0.len())
}

fn place(object: &str, key: &str) -> Result<usize, String> {
    let members: Members<'_> = serde_json::from_str(object).map_err(|error| error.to_string())?;
    let found = members.0.iter().position(|(name, _)| name == key);
    found.ok_or_else(|| format!("'{key}' is gone"))
}

/// The range of one of `many` parts of a container, with the comma that goes with it.
fn part(text: &str, container: &str, position: usize, many: usize) -> Result<Range<usize>, String> {
    let values: Vec<&str> = match container.starts_with('{') {
        true => {
            let members: Members<'_> =
                serde_json::from_str(container).map_err(|error| error.to_string())?;
            members
                .0
                .into_iter()
                .map(|(_, value)| value.get())
                .collect()
        }
        false => elements(container)?
            .into_iter()
            .map(RawValue::get)
            .collect(),
    };
    let end = |one: usize| span(text, values[one]).end;
    let container = span(text, container);
    Ok(match position {
        0 if many == 1 => container.start + 1..container.end - 1,
        // The first one goes with the comma behind it, so that what stands before the next one stays.
        0 => {
            let after = end(0) + text[end(0)..].find(',').ok_or("a comma is missing")? + 1;
            container.start + 1..after
        }
        _ => end(position - 1)..end(position),
    })
}

/// By how much the members of the file are indented.
fn indent(text: &str) -> String {
    let line = text.lines().skip(1).find(|line| !line.trim().is_empty());
    let spaces = line.map_or("", |line| &line[..line.len() - line.trim_start().len()]);
    match spaces.is_empty() {
        true => "  ".to_owned(),
        false => spaces.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn own(entry: &Value) -> bool {
        entry["own"] == true
    }

    /// Inserting and removing an entry leaves every byte as before.
    #[test]
    fn removal_is_the_inverse_of_insertion() {
        for text in [
            "{}\n",
            "{}",
            "{\"model\": \"x\"}",
            "{\n\t\"b\": 1,\n\t\"a\": [1,2 ,3]\n}\n",
            "{\n    \"hooks\": {\n        \"Stop\": [{\"x\":1}]\n    },\n    \"z\": 1e5\n}",
            "{\"hooks\":{\"Pre\":[ {\"x\":1} ]}, \"k\":\"\\u00e9\"}\n\n",
        ] {
            let mut changed = text.to_owned();
            for event in ["Pre", "Post"] {
                changed = insert(&changed, event, &json!({"own": true, "n": [1]}), own).unwrap();
            }
            let parsed: Value = serde_json::from_str(&changed).unwrap();
            assert_eq!(parsed["hooks"]["Post"][0]["own"], true, "{changed}");
            let again = insert(&changed, "Pre", &json!({"own": true, "n": [1]}), own).unwrap();
            assert_eq!(again, changed);
            for event in ["Pre", "Post"] {
                changed = remove(&changed, event, own).unwrap();
            }
            assert_eq!(changed, text);
        }
    }

    #[test]
    fn what_others_entered_after_ours_stays() {
        let text = insert("{}", "Pre", &json!({"own": true}), own).unwrap();
        let text = insert(&text, "Pre", &json!({"x": 1}), |_| false).unwrap();
        let text = text.replace("\"hooks\"", "\"first\": 0, \"hooks\"");
        let removed: Value = serde_json::from_str(&remove(&text, "Pre", own).unwrap()).unwrap();
        assert_eq!(removed, json!({"first": 0, "hooks": {"Pre": [{"x": 1}]}}));
    }

    #[test]
    fn what_is_no_object_or_has_a_key_twice_is_refused() {
        for text in [
            "[]",
            "{",
            "{\"hooks\": []}",
            "{\"hooks\":{},\"hooks\":{}}",
            "{} x",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
    }
}
