//! Parses the text of a configuration. Errors name file, line, column and key.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Error as YamlError, Options, Spanned};

use super::{Config, ConfigError, TypeEntry, TypeItem};
use crate::model::text::{Location, nearest};
use crate::policy::{Policy, WrittenPolicy};

/// Line and column, both from 1.
type Position = (u64, u64);

/// Where every key and every value stands.
pub(super) struct KeyPositions {
    file: Location,
    all: Vec<KeyPosition>,
}

struct KeyPosition {
    /// As in `resources.app.at` or `resource_types[0].name`.
    path: String,
    key: Position,
    value: Position,
}

fn utf8<'a>(bytes: &'a [u8], file: &Location) -> Result<&'a str, ConfigError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = before.split(|byte| *byte == b'\n');
        let column = line.clone().next_back().map_or(0, <[u8]>::len);
        let nowhere = KeyPositions {
            file: file.clone(),
            all: Vec::new(),
        };
        let at = (line.count() as u64, column as u64 + 1);
        nowhere.fault_at(at, String::new(), "this is not UTF-8".to_owned())
    })
}

/// Reads a text; names in it are not looked at yet.
pub(super) fn read(bytes: &[u8], file: &Path) -> Result<(Config, KeyPositions), ConfigError> {
    let file = Location::from(file);
    let text = utf8(bytes, &file)?;
    let options = options(DuplicateKeyPolicy::Error);
    match serde_saphyr::from_str_with_options::<Option<Config>>(text, options) {
        Ok(config) => Ok((config.unwrap_or_default(), KeyPositions::of(text, file))),
        Err(error) => Err(KeyPositions::of(text, file).explain(&error)),
    }
}

/// Kinds of a file of its own, with where they stand in it.
pub(super) struct TypeFile {
    pub(super) entries: Vec<TypeEntry>,
    pub(super) places: KeyPositions,
    /// Whether it holds a list of them.
    pub(super) is_list: bool,
}

/// Reads the files that belong to the configuration `file`.
pub(super) fn read_types(
    files: &[(&str, &[u8])],
    file: &Path,
) -> Result<Vec<TypeFile>, ConfigError> {
    let directory = file.parent().unwrap_or(Path::new(""));
    let one = |(name, text): &(&str, &[u8])| read_type_file(text, &directory.join(name));
    files.iter().map(one).collect()
}

/// Reads a file that holds a kind, or a list of them.
pub(super) fn read_type_file(bytes: &[u8], file: &Path) -> Result<TypeFile, ConfigError> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Whole(#[serde(deserialize_with = "one_or_many")] (Vec<TypeEntry>, bool));
    let location = Location::from(file);
    let text = utf8(bytes, &location)?;
    let options = options(DuplicateKeyPolicy::Error);
    let places = KeyPositions::of(text, location);
    match serde_saphyr::from_str_with_options::<Whole>(text, options) {
        Ok(Whole((entries, is_list))) => Ok(TypeFile {
            entries,
            places,
            is_list,
        }),
        Err(error) => Err(places.explain(&error)),
    }
}

/// Whether a text is a file of types and no configuration: it is a list, or has a name.
pub(super) fn is_type_file(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let places = KeyPositions::of(&text, Location::default());
    places.says("[0]") || places.says("name")
}

fn one_or_many<'de, D: Deserializer<'de>>(from: D) -> Result<(Vec<TypeEntry>, bool), D::Error> {
    struct OneOrMany;
    impl<'de> Visitor<'de> for OneOrMany {
        type Value = (Vec<TypeEntry>, bool);

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a type, or a list of types")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            let one = TypeEntry::deserialize(MapAccessDeserializer::new(map))?;
            Ok((vec![one], false))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(item) = items.next_element()? {
                all.push(item);
            }
            Ok((all, true))
        }
    }
    from.deserialize_any(OneOrMany)
}

impl<'de> Deserialize<'de> for TypeItem {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Item;
        impl<'de> Visitor<'de> for Item {
            type Value = TypeItem;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a type, or a file of types")
            }

            fn visit_str<E>(self, files: &str) -> Result<TypeItem, E> {
                Ok(TypeItem::Files(files.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TypeItem, A::Error> {
                TypeEntry::deserialize(MapAccessDeserializer::new(map)).map(TypeItem::Entry)
            }
        }
        from.deserialize_any(Item)
    }
}

/// The policy in the text of a configuration; one that permits everything where it has none.
pub fn read_policy(bytes: &[u8], file: &Path) -> Result<Policy, ConfigError> {
    let (_, places) = read(bytes, file)?;
    policy(bytes, &places).map(Option::unwrap_or_default)
}

/// The policy of a text that could be read: one that makes no sense denies everything, so it is read apart.
pub(super) fn policy(bytes: &[u8], places: &KeyPositions) -> Result<Option<Policy>, ConfigError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct PolicyOnly {
        policy: Option<WrittenPolicy>,
    }
    let text = String::from_utf8_lossy(bytes);
    let options = options(DuplicateKeyPolicy::Error);
    let read = serde_saphyr::from_str_with_options::<Option<PolicyOnly>>(&text, options);
    let read = read.map_err(|error| places.explain(&error))?;
    let written = read.and_then(|read| read.policy);
    written
        .map(|written| {
            let fault = |(key, what)| places.fault(&format!("policy.{key}"), what);
            Policy::new(&written).map_err(fault)
        })
        .transpose()
}

/// How text is read: no more of it than anyone writes by hand, nor deeper than the stack allows.
fn options(duplicate_keys: DuplicateKeyPolicy) -> Options {
    serde_saphyr::options! {
        with_snippet: false,
        duplicate_keys: duplicate_keys,
        budget: serde_saphyr::budget! {
            max_depth: 24,
            flow_nesting_limit: 24,
            max_nodes: 50_000,
        },
    }
}

impl KeyPositions {
    /// The places of a text; none where it cannot be read at all.
    fn of(text: &str, file: Location) -> Self {
        let options = options(DuplicateKeyPolicy::LastWins);
        let mut all = Vec::new();
        if let Ok(root) = serde_saphyr::from_str_with_options::<Spanned<Node>>(text, options) {
            note("", &root, &mut all);
        }
        Self { file, all }
    }

    /// Those of a text that has none.
    pub(super) fn none(file: &Path) -> Self {
        Self {
            file: Location::from(file),
            all: Vec::new(),
        }
    }

    /// Whether the text has a key, as in `sandbox.undo.keep`.
    pub(super) fn says(&self, path: &str) -> bool {
        self.all.iter().any(|place| place.path == path)
    }

    /// A fault of the value at a path.
    pub(super) fn fault(&self, path: &str, what: impl Into<String>) -> ConfigError {
        // What stands there by way of an anchor is reported where it is used.
        let mut paths = std::iter::successors(Some(path), |path| above(path));
        let found = paths.find_map(|path| self.all.iter().find(|place| place.path == path));
        let at = found.map_or((0, 0), |place| place.value);
        self.fault_at(at, path.to_owned(), what.into())
    }

    /// The same for a name that leads nowhere.
    pub(super) fn unknown(
        &self,
        path: &str,
        what: impl Into<String>,
        name: &str,
        known: Vec<String>,
    ) -> ConfigError {
        let near = nearest(name, &known);
        ConfigError {
            near,
            known,
            ..self.fault(path, what)
        }
    }

    fn fault_at(&self, (line, column): Position, key: String, what: String) -> ConfigError {
        ConfigError {
            file: self.file.clone(),
            line,
            column,
            key,
            what,
            near: None,
            known: Vec::new(),
            advice: Vec::new(),
        }
    }

    /// The key that an error is about: the one that stands there, the one whose value stands there,
    /// or the last one before.
    fn key_at(&self, at: Position, is_key: bool) -> String {
        let key = |place: &&KeyPosition| place.key == at;
        let value = |place: &&KeyPosition| place.value == at;
        let exact = match is_key {
            true => self.all.iter().rfind(key),
            false => self.all.iter().find(value),
        };
        let before = || self.all.iter().rfind(|place| place.key <= at);
        exact
            .or_else(before)
            .map_or_else(String::new, |place| place.path.clone())
    }

    /// What is wrong, in our words.
    fn explain(&self, error: &YamlError) -> ConfigError {
        let place = error.location();
        let error = match error.without_snippet() {
            YamlError::AliasError { error, .. } => error.without_snippet(),
            error => error,
        };
        let at = place.map_or((0, 0), |at| (at.line(), at.column()));
        let owned = |names: &[&'static str]| names.iter().map(|&name| name.to_owned()).collect();
        let about_key = matches!(
            error,
            YamlError::SerdeUnknownField { .. } | YamlError::DuplicateMappingKey { .. }
        );
        let mut known: Vec<String> = Vec::new();
        let mut typed = "";
        let what = match error {
            YamlError::SerdeUnknownField {
                field, expected, ..
            } => {
                (known, typed) = (owned(expected), field);
                format!("there is no key '{field}'")
            }
            YamlError::SerdeUnknownVariant {
                variant, expected, ..
            } => {
                (known, typed) = (owned(expected), variant);
                format!("it cannot be '{variant}'")
            }
            YamlError::SerdeMissingField { field, .. } => {
                let what = format!("the key '{field}' is missing");
                // It is reported at the last key that is there.
                let mut keys = self.all.iter().filter(|place| place.value != at);
                if let Some(holder) = keys
                    .rfind(|place| place.key == at)
                    .and_then(|last| above(&last.path))
                {
                    return self.fault(holder, what);
                }
                what
            }
            YamlError::DuplicateMappingKey { .. } => "it is there twice".to_owned(),
            YamlError::MultipleDocuments { .. } => {
                "a second document begins here; one is expected".to_owned()
            }
            YamlError::NullIntoString { .. } => "the value is missing".to_owned(),
            YamlError::Unexpected { expected, .. } => match *expected {
                "mapping start" => "keys with values are expected here".to_owned(),
                "sequence start" => "a list is expected here".to_owned(),
                "string scalar" => "a text is expected here".to_owned(),
                other => format!("{other} is expected here"),
            },
            YamlError::InvalidScalar { ty: "boolean", .. } => "it must be true or false".to_owned(),
            YamlError::InvalidScalar { ty, .. } if ty.starts_with(['u', 'i']) => {
                "it must be a whole number that is not negative or too large".to_owned()
            }
            YamlError::Budget { .. } => "it is too large, or nested too deeply".to_owned(),
            YamlError::RecursiveReferencesRequireWeakTypes { .. } => {
                "it would contain itself".to_owned()
            }
            YamlError::SerdeInvalidType {
                unexpected,
                expected,
                ..
            } => format!("{expected} is expected here, not {unexpected}"),
            YamlError::Message { msg, .. } => msg.clone(),
            other => {
                let text = other.to_string();
                let end = text.rfind(" at line ").unwrap_or(text.len());
                text[..end].to_owned()
            }
        };
        let key = self.key_at(at, about_key);
        ConfigError {
            near: nearest(typed, &known),
            known,
            ..self.fault_at(at, key, what)
        }
    }
}

/// The path of what holds the value at a path.
fn above(path: &str) -> Option<&str> {
    path.rfind(['.', '[']).map(|end| &path[..end])
}

/// Any YAML, for the sake of its places.
enum Node {
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
    List(Vec<Spanned<Node>>),
    Leaf,
}

fn note(path: &str, node: &Spanned<Node>, all: &mut Vec<KeyPosition>) {
    let position = |at: serde_saphyr::Location| (at.line(), at.column());
    match &node.value {
        Node::Leaf => {}
        Node::Map(entries) => {
            for (key, value) in entries {
                let path = match path {
                    "" => key.value.clone(),
                    path => format!("{path}.{}", key.value),
                };
                all.push(KeyPosition {
                    path: path.clone(),
                    key: position(key.referenced),
                    value: position(value.referenced),
                });
                note(&path, value, all);
            }
        }
        Node::List(items) => {
            for (number, item) in items.iter().enumerate() {
                let path = format!("{path}[{number}]");
                let at = position(item.referenced);
                all.push(KeyPosition {
                    path: path.clone(),
                    key: at,
                    value: at,
                });
                note(&path, item, all);
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyNode)
    }
}

struct AnyNode;

macro_rules! leaf {
    ($($visit:ident: $scalar:ty),*) => {
        $(fn $visit<E>(self, _: $scalar) -> Result<Node, E> {
            Ok(Node::Leaf)
        })*
    };
}

impl<'de> Visitor<'de> for AnyNode {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    leaf!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(Node::List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut all = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            all.push(entry);
        }
        Ok(Node::Map(all))
    }
}
