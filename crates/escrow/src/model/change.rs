//! Changes and diffs: one [`Change`] for each path that differs.

use std::collections::{BTreeMap, HashSet};
use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::path::ResourcePath;
use super::text::Location;

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix socket.
    Socket,
    /// A character or block device.
    Device,
}

impl EntryKind {
    /// The word people use for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::Fifo => "named pipe",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }
}

/// How a path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is new in the sandbox.
    Added,
    /// Its content, or a link's target, differs.
    Modified,
    /// The sandbox removed it.
    Deleted,
    /// It is another kind of thing now.
    TypeChanged,
    /// Only its mode, owner or extended attributes differ.
    ModeChanged,
    /// A row that is new in the sandbox.
    Inserted,
    /// A row whose values differ.
    Updated,
}

impl ChangeKind {
    /// The letter of a name-status listing.
    pub fn letter(self) -> char {
        match self {
            Self::Added => 'A',
            Self::Modified => 'M',
            Self::Deleted => 'D',
            Self::TypeChanged => 'T',
            Self::ModeChanged => 'P',
            Self::Inserted => 'A',
            Self::Updated => 'M',
        }
    }
}

/// One respect in which two versions of an entry differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangedField {
    /// A file's bytes.
    Content,
    /// Where a symbolic link points.
    Target,
    /// Permission, setuid, setgid and sticky bits.
    Mode,
    /// User or group.
    Owner,
    /// Extended attributes, access control lists among them.
    Xattrs,
}

/// The respects in which two versions differ; in one byte, since there is one for each changed path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<ChangedField>", into = "Vec<ChangedField>")]
pub struct ChangedFields(u8);

impl ChangedFields {
    /// Whether they differ in this one.
    pub fn contains(self, field: &ChangedField) -> bool {
        self.0 & (1 << *field as u8) != 0
    }

    /// Whether they differ in nothing.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl From<Vec<ChangedField>> for ChangedFields {
    fn from(fields: Vec<ChangedField>) -> Self {
        let bits = fields.into_iter().map(|field| 1 << field as u8);
        Self(bits.fold(0, |all, bit: u8| all | bit))
    }
}

impl From<ChangedFields> for Vec<ChangedField> {
    fn from(fields: ChangedFields) -> Self {
        let all = [
            ChangedField::Content,
            ChangedField::Target,
            ChangedField::Mode,
            ChangedField::Owner,
            ChangedField::Xattrs,
        ];
        let differs = |field: &ChangedField| fields.contains(field);
        all.into_iter().filter(differs).collect()
    }
}

/// What is known of one version of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryInfo {
    /// What it is.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Bytes of a file, length of a link's target; 0 for others.
    pub size: u64,
    /// The twelve permission bits.
    pub mode: u16,
    /// Where a symbolic link points; apart, since few are links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Box<Location>>,
}

/// One difference between sandbox and original: an item, how it differs, and what is known of both versions.
///
/// It reads as the change of a file; that of anything else has no versions of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The item: where in the resource it is.
    pub path: ResourcePath,
    /// How.
    pub kind: ChangeKind,
    /// What is known of the versions.
    #[serde(flatten)]
    pub detail: Detail,
}

/// What is known of the versions of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Detail {
    /// An entry of a directory.
    File(FileDetail),
    /// A row of a table.
    Row(Box<RowDetail>),
    /// What only the strategy understands.
    Opaque {
        /// In its own words.
        detail: serde_json::Value,
        /// What it brings along at paths of the resource.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        carried: Vec<Carried>,
    },
}

/// A version that an item which is no file brings along at a path of the resource: in a commit of a history, or staged. Who
/// commits the item releases it, whatever the files show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Where it is, as the strategy calls it: `commit 1a2b3c4d5e "fix typo"`, `the index`.
    pub within: String,
    /// How the path changes there, as that of a file. Sizes are not known.
    pub change: Change,
    /// The names of both versions, by which the strategy finds their contents.
    pub ids: (Option<String>, Option<String>),
    /// What the files show there.
    pub files: CarriedFiles,
}

/// Contents of versions that are carried, by their names.
pub type CarriedContents = BTreeMap<String, Vec<u8>>;

/// What the files of a resource show of a version that something else carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CarriedFiles {
    /// The same version.
    Same,
    /// A later one: the path is among the changed files.
    Later,
    /// No change at this path, or another version than the one that would count.
    Other,
}

/// The versions of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowDetail {
    /// The table.
    pub table: String,
    /// The values of the primary key, a list; `null` where there is none.
    pub key: JsonText,
    /// The values that differ, in the original, by column; `null` for a row that was inserted.
    pub before: JsonText,
    /// The same in the sandbox; `null` for a row that was deleted.
    pub after: JsonText,
}

/// A JSON value that is kept as its text: of many rows that takes a fraction of the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonText(Box<str>);

impl JsonText {
    /// The value.
    pub fn value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<serde_json::Value> for JsonText {
    fn from(value: serde_json::Value) -> Self {
        Self(value.to_string().into())
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(to)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        serde_json::Value::deserialize(from).map(Self::from)
    }
}

/// The versions of an entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDetail {
    /// In which respects, for [`ChangeKind::Modified`] and [`ChangeKind::ModeChanged`].
    pub fields: ChangedFields,
    /// The original's version; `None` for what was added.
    pub old: Option<EntryInfo>,
    /// The sandbox's version; `None` for what was deleted.
    pub new: Option<EntryInfo>,
}

/// What is read where there are no versions of a file.
const NO_FILE: FileDetail = FileDetail {
    fields: ChangedFields(0),
    old: None,
    new: None,
};

impl Deref for Change {
    type Target = FileDetail;

    fn deref(&self) -> &FileDetail {
        match &self.detail {
            Detail::File(file) => file,
            Detail::Row(_) | Detail::Opaque { .. } => &NO_FILE,
        }
    }
}

impl Change {
    /// Whether it is of a file of which nothing but the content changed: then some of its hunks can be released.
    pub fn is_of_content(&self) -> bool {
        let is_file = |side: &Option<EntryInfo>| {
            side.as_ref()
                .is_some_and(|side| side.kind == EntryKind::File)
        };
        let content = ChangedFields::from(vec![ChangedField::Content]);
        is_file(&self.old) && is_file(&self.new) && self.fields == content
    }

    fn of_file(
        path: ResourcePath,
        kind: ChangeKind,
        fields: ChangedFields,
        old: Option<EntryInfo>,
        new: Option<EntryInfo>,
    ) -> Self {
        let detail = Detail::File(FileDetail { fields, old, new });
        Self { path, kind, detail }
    }

    /// A path that only the sandbox has.
    pub fn added(path: ResourcePath, new: EntryInfo) -> Self {
        Self::of_file(path, ChangeKind::Added, ChangedFields(0), None, Some(new))
    }

    /// A path that only the original has.
    pub fn deleted(path: ResourcePath, old: EntryInfo) -> Self {
        Self::of_file(path, ChangeKind::Deleted, ChangedFields(0), Some(old), None)
    }

    /// A file with other content.
    pub fn replaced(path: ResourcePath, old: EntryInfo, new: EntryInfo) -> Self {
        let fields = ChangedFields::from(vec![ChangedField::Content]);
        Self::of_file(path, ChangeKind::Modified, fields, Some(old), Some(new))
    }

    /// An item that is no file.
    pub fn opaque(path: ResourcePath, kind: ChangeKind, detail: serde_json::Value) -> Self {
        let carried = Vec::new();
        let detail = Detail::Opaque { detail, carried };
        Self { path, kind, detail }
    }

    /// What it brings along at other paths than its own.
    pub fn carried(&self) -> &[Carried] {
        match &self.detail {
            Detail::Opaque { carried, .. } => carried,
            Detail::File(_) | Detail::Row(_) => &[],
        }
    }

    /// What of that the files do not show.
    pub fn unseen(&self) -> impl Iterator<Item = &Carried> {
        let unseen = |one: &&Carried| one.files == CarriedFiles::Other;
        self.carried().iter().filter(unseen)
    }

    /// What the strategy says of a change that is no file's for everybody to read before it is released.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let said = match &self.detail {
            Detail::Opaque { detail, .. } => detail.get("warnings").and_then(|all| all.as_array()),
            Detail::File(_) | Detail::Row(_) => None,
        };
        said.into_iter().flatten().filter_map(|one| one.as_str())
    }

    /// Whether it is released only where it is named.
    pub fn is_by_name(&self) -> bool {
        self.says("by_name")
    }

    /// The same change, named: it is released.
    pub(crate) fn named(mut self) -> Self {
        if let Detail::Opaque { detail, .. } = &mut self.detail {
            detail["released"] = true.into();
        }
        self
    }

    /// Whether the strategy says this of a change that is no file's.
    pub(crate) fn says(&self, key: &str) -> bool {
        matches!(&self.detail, Detail::Opaque { detail, .. } if detail[key] == true)
    }

    /// A path that both have; `None` where they do not differ.
    pub fn between(
        path: ResourcePath,
        old: EntryInfo,
        new: EntryInfo,
        fields: Vec<ChangedField>,
    ) -> Option<Self> {
        let mut fields = ChangedFields::from(fields);
        let kind = if old.kind != new.kind {
            fields = ChangedFields::default();
            ChangeKind::TypeChanged
        } else if fields.contains(&ChangedField::Content) || fields.contains(&ChangedField::Target)
        {
            ChangeKind::Modified
        } else if fields.is_empty() {
            return None;
        } else {
            ChangeKind::ModeChanged
        };
        Some(Self::of_file(path, kind, fields, Some(old), Some(new)))
    }
}

/// Everything in which one sandbox differs from its original, in the order of the paths.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiffView {
    /// The differences.
    pub changes: Vec<Change>,
}

impl DiffView {
    /// A view of these changes, sorted by path.
    pub fn new(mut changes: Vec<Change>) -> Self {
        changes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Self { changes }
    }

    /// Says of what is carried at paths that are left out of this view that the files do not show it.
    pub(crate) fn leave_out(&mut self, left: &Self) {
        let paths: HashSet<&ResourcePath> = left.changes.iter().map(|one| &one.path).collect();
        for change in &mut self.changes {
            let Detail::Opaque { detail, carried } = &mut change.detail else {
                continue;
            };
            let mut said = HashSet::new();
            for one in carried {
                let path = one.change.path.clone();
                if one.files == CarriedFiles::Other || !paths.contains(&path) {
                    continue;
                }
                one.files = CarriedFiles::Other;
                if said.insert(path.clone()) {
                    let line = format!("{} has {path}, which is left out of the files", one.within);
                    for key in ["lines", "warnings"] {
                        match detail[key].as_array_mut() {
                            Some(all) => all.push(line.clone().into()),
                            None => detail[key] = vec![line.clone()].into(),
                        }
                    }
                }
            }
        }
    }

    /// Whether sandbox and original agree.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}
