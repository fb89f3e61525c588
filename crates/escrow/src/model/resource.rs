//! The kinds of resources, and which strategies each of them takes. The one definition: the
//! registry, the command line and the documentation read it from here.

/// A kind of resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceType {
    /// Its name, as typed after `--type`.
    pub name: &'static str,
    /// What `auto` tries, in this order.
    pub auto: &'static [&'static str],
    /// Every strategy that may be asked for by name.
    pub allowed: &'static [&'static str],
}

/// A directory and everything in it.
pub const FS_DIRECTORY: ResourceType = ResourceType {
    name: "fs-directory",
    auto: &["overlay", "copy_on_write", "filesystem_copy"],
    allowed: &["overlay", "copy_on_write", "filesystem_copy", "none"],
};

/// Every kind there is.
pub const ALL: &[ResourceType] = &[FS_DIRECTORY];

impl ResourceType {
    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|kind| kind.name == name).copied()
    }
}
