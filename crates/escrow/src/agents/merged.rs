//! JSON files that hold an agent's state and its configuration at once, such as `~/.claude.json`.
//!
//! Inside stands the real file with what the agent home adds. Afterwards each key that changed goes one of three ways: keys of the
//! preset's list are merged into the real file; keys that execute are kept out and named; all others stay in the agent home, and are
//! there the next time.

use serde_json::{Map, Value};

use super::MergedFile;

/// The largest value, as text, that leaves a run.
const LARGEST: usize = 256 << 10;

/// A key of a JSON document: the names that lead to it.
pub(crate) type KeyPath = Vec<String>;

/// What became of a file inside.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ChangedKeys {
    /// For the real file.
    pub(crate) merged: Vec<(KeyPath, Option<Value>)>,
    /// For the agent home.
    pub(crate) kept: Vec<(KeyPath, Option<Value>)>,
    /// Kept out.
    pub(crate) wanted: Vec<(KeyPath, Option<Value>)>,
}

/// What a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyClass {
    Merged,
    Executes,
    /// Keys below it are told apart.
    Inner,
    Unknown,
}

/// Reads a JSON object; `None` for any other text.
pub(crate) fn object(bytes: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(bytes).ok()
}

/// What the file is inside: the real one with the additions of the agent home, and with what the preset says.
pub(crate) fn inside(
    real: Option<&Map<String, Value>>,
    kept: Option<&Map<String, Value>>,
    file: &MergedFile,
    here: &str,
) -> Map<String, Value> {
    let mut all = real.cloned().unwrap_or_default();
    if let Some(kept) = kept {
        // Only what the real file may not hold by the classes of now: a preset may have learned since.
        for (path, value) in leaves(kept, file) {
            if class(&path, file) == KeyClass::Unknown {
                set(&mut all, &path, Some(value));
            }
        }
    }
    for (key, value) in &file.seeds {
        all.entry(key.clone()).or_insert(Value::Bool(*value));
    }
    if let Some([above, key]) = &file.seeds_here {
        set(
            &mut all,
            &[above.clone(), here.to_owned(), key.clone()],
            Some(Value::Bool(true)),
        );
    }
    all
}

/// Compares the file that a command was given with the one that it left, and says where each changed key goes.
pub(crate) fn changed(
    given: &Map<String, Value>,
    left: &Map<String, Value>,
    file: &MergedFile,
) -> ChangedKeys {
    let mut found = ChangedKeys::default();
    compare(given, left, &mut Vec::new(), file, &mut found);
    found
}

fn compare(
    given: &Map<String, Value>,
    left: &Map<String, Value>,
    above: &mut KeyPath,
    file: &MergedFile,
    found: &mut ChangedKeys,
) {
    let gone = given.keys().filter(|key| !left.contains_key(*key));
    for key in left.keys().chain(gone) {
        let (old, new) = (given.get(key), left.get(key));
        if old == new {
            continue;
        }
        above.push(key.clone());
        let class = class(above, file);
        match (class, old, new) {
            (KeyClass::Inner, old, Some(Value::Object(new))) => {
                let none = Map::new();
                let old = old.and_then(Value::as_object).unwrap_or(&none);
                compare(old, new, above, file, found);
            }
            _ => {
                let is_large = new.is_some_and(|new| new.to_string().len() > LARGEST);
                let list = match class {
                    // Nothing of a counter's or an account's size.
                    KeyClass::Merged | KeyClass::Inner | KeyClass::Unknown if is_large => continue,
                    KeyClass::Merged => &mut found.merged,
                    KeyClass::Executes => &mut found.wanted,
                    KeyClass::Inner | KeyClass::Unknown => &mut found.kept,
                };
                list.push((above.clone(), new.cloned()));
            }
        }
        above.pop();
    }
}

/// The values of an object that are not told apart further.
fn leaves(object: &Map<String, Value>, file: &MergedFile) -> Vec<(KeyPath, Value)> {
    let mut found = Vec::new();
    let mut open: Vec<(KeyPath, &Map<String, Value>)> = vec![(Vec::new(), object)];
    while let Some((above, object)) = open.pop() {
        for (key, value) in object {
            let mut path = above.clone();
            path.push(key.clone());
            match value {
                Value::Object(inner) if class(&path, file) == KeyClass::Inner => {
                    open.push((path, inner));
                }
                value => found.push((path, value.clone())),
            }
        }
    }
    found
}

fn class(path: &[String], file: &MergedFile) -> KeyClass {
    let leads = |pattern: &String, whole: bool| {
        let names: Vec<&str> = pattern.split('.').collect();
        let fits = names.len() == path.len() || (!whole && names.len() > path.len());
        let mut pairs = names.iter().zip(path);
        fits && pairs.all(|(name, key)| *name == "*" || name == key)
    };
    if file.executes.iter().any(|one| leads(one, true)) {
        return KeyClass::Executes;
    }
    if file.keys.iter().any(|one| leads(one, true)) {
        return KeyClass::Merged;
    }
    let mut all = file.executes.iter().chain(&file.keys);
    match all.any(|one| leads(one, false)) {
        true => KeyClass::Inner,
        false => KeyClass::Unknown,
    }
}

/// Sets or removes a key, with the objects that lead to it.
pub(crate) fn set(object: &mut Map<String, Value>, path: &[String], value: Option<Value>) {
    let Some((last, above)) = path.split_last() else {
        return;
    };
    let mut object = object;
    for key in above {
        let inner = object
            .entry(key.clone())
            .or_insert_with(|| Value::Object(Map::new()));
        if !inner.is_object() {
            *inner = Value::Object(Map::new());
        }
        object = inner.as_object_mut().expect("it was just made one");
    }
    match value {
        Some(value) => drop(object.insert(last.clone(), value)),
        None => drop(object.remove(last)),
    }
}

/// A document as agents write it.
pub(crate) fn text(object: &Map<String, Value>) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(object).expect("an object is JSON");
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file() -> MergedFile {
        MergedFile {
            file: ".claude.json".into(),
            keys: vec!["userID".into(), "projects.*.lastCost".into()],
            executes: vec!["mcpServers".into(), "projects.*.allowedTools".into()],
            seeds: [("seen".to_owned(), true)].into(),
            seeds_here: Some(["projects".into(), "trust".into()]),
        }
    }

    fn of(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    fn names(list: &[(KeyPath, Option<Value>)]) -> String {
        let names = list.iter().map(|(path, _)| path.join("/"));
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_key_goes_its_way() {
        let given = of(json!({"userID": "a", "odd": 1, "projects": {"/x": {"lastCost": 1}}}));
        let left = of(json!({
            "userID": "b", "odd": 2, "mcpServers": {"evil": {}},
            "projects": {"/x": {"lastCost": 2, "allowedTools": ["*"], "trust": true}, "/y": {"trust": true}},
        }));
        let found = changed(&given, &left, &file());
        assert_eq!(names(&found.merged), "projects//x/lastCost userID");
        assert_eq!(names(&found.wanted), "mcpServers projects//x/allowedTools");
        assert_eq!(
            names(&found.kept),
            "odd projects//x/trust projects//y/trust"
        );
        let mut kept = Map::new();
        for (path, value) in found.kept {
            set(&mut kept, &path, value);
        }
        let real = of(json!({"userID": "c", "projects": {"/x": {"lastCost": 3}}}));
        let next = inside(Some(&real), Some(&kept), &file(), "/z");
        assert_eq!(
            Value::Object(next),
            json!({"userID": "c", "odd": 2, "seen": true,
                "projects": {"/x": {"lastCost": 3, "trust": true}, "/y": {"trust": true}, "/z": {"trust": true}}})
        );
    }

    // rule A1
    #[test]
    fn what_executes_never_comes_back_from_the_agent_home() {
        let kept = of(
            json!({"mcpServers": {"evil": {}}, "projects": {"/x": {"allowedTools": ["*"]}}, "odd": 1}),
        );
        let next = inside(None, Some(&kept), &file(), "/z");
        assert_eq!(
            Value::Object(next),
            json!({"odd": 1, "seen": true, "projects": {"/z": {"trust": true}}})
        );
    }

    #[test]
    fn what_is_no_object_any_more_is_unknown() {
        let given = of(json!({"projects": {"/x": {"lastCost": 1}}}));
        let found = changed(&given, &of(json!({"projects": 7})), &file());
        assert_eq!(names(&found.kept), "projects");
        let found = changed(&given, &Map::new(), &file());
        assert_eq!(names(&found.kept), "projects");
    }
}
