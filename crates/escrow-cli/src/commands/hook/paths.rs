//! Paths of originals, translated into those of the sandboxes.
//!
//! A client's file tools work outside of the plan's namespace. So a path is walked here link by link, as it would be inside: each
//! component is looked up in the sandbox where it lies in a resource. The answer holds no link, and a link of the sandbox that leads
//! out of it is refused.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// How many links one path may follow, as for the kernel.
const MOST_LINKS: usize = 40;

/// A resource and where its sandbox shows it.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) name: String,
    pub(super) original: PathBuf,
    /// `None` where the strategy gives no path.
    pub(super) sandbox: Option<PathBuf>,
}

/// The resources of a plan, the innermost first.
#[derive(Debug)]
pub(super) struct Roots(Vec<Root>);

/// The meaning of a path inside the plan.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// In a sandbox: the resource, the path in it, and where it lies on disk.
    Inside(&'a str, PathBuf, PathBuf),
    /// In no resource.
    Outside(PathBuf),
    /// Nothing that a tool may use; the reason.
    Refused(String),
}

impl Roots {
    pub(super) fn new(mut all: Vec<Root>) -> Self {
        all.sort_by_key(|root| std::cmp::Reverse(root.original.components().count()));
        Self(all)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Root> {
        self.0.iter()
    }

    fn of(&self, at: &Path) -> Option<&Root> {
        self.0.iter().find(|root| at.starts_with(&root.original))
    }

    /// Returns the path on disk for a path of an original; `None` where the sandbox has no path.
    fn on_disk(&self, at: &Path) -> Option<PathBuf> {
        match self.of(at) {
            None => Some(at.to_owned()),
            Some(root) => Some(below(root.sandbox.as_ref()?, &root.original, at)),
        }
    }

    /// The path by which the original is known, of one that may lie in a sandbox.
    fn as_original(&self, at: PathBuf) -> PathBuf {
        let shows = |root: &&Root| root.sandbox.as_ref().is_some_and(|dir| at.starts_with(dir));
        match self.0.iter().find(shows) {
            Some(
                root @ Root {
                    sandbox: Some(dir), ..
                },
            ) => below(&root.original, dir, &at),
            _ => at,
        }
    }

    /// Resolves an absolute path as a command inside would.
    pub(super) fn resolve(&self, path: &Path) -> Place<'_> {
        let mut rest: Vec<OsString> = reversed(path);
        let mut at = PathBuf::from("/");
        let (mut links, mut followed) = (0, None);
        while let Some(part) = rest.pop() {
            if part == ".." {
                at.pop();
                continue;
            }
            let next = self.as_original(at.join(&part));
            let target = self
                .on_disk(&next)
                .and_then(|on_disk| on_disk.read_link().ok());
            let Some(target) = target else {
                at = next;
                continue;
            };
            links += 1;
            if links > MOST_LINKS {
                return Place::Refused(format!("'{}' has too many links", path.display()));
            }
            if self.of(&next).is_some() {
                followed = Some(next);
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            rest.extend(reversed(&target));
        }
        let Some(root) = self.of(&at) else {
            return match followed {
                Some(link) => Place::Refused(format!(
                    "the link '{}' leads out of the sandbox, to '{}'",
                    link.display(),
                    at.display()
                )),
                None => Place::Outside(at),
            };
        };
        let inner = at.strip_prefix(&root.original).unwrap_or(Path::new(""));
        match self.on_disk(&at) {
            Some(on_disk) => Place::Inside(&root.name, inner.to_owned(), on_disk),
            None => Place::Refused(format!(
                "the sandbox of '{}' has no path for file tools; commands reach it",
                root.name
            )),
        }
    }

    /// Returns the path by which a directory is known inside.
    pub(super) fn inside(&self, path: &Path) -> PathBuf {
        match self.resolve(path) {
            Place::Inside(name, inner, _) => {
                let root = self.0.iter().find(|root| root.name == name);
                root.map_or_else(|| path.to_owned(), |root| root.original.join(inner))
            }
            _ => path.to_owned(),
        }
    }
}

/// The components of a path, the last one first; `..` stays.
fn reversed(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    let parts = parts.filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

/// `at`, which lies in `from`, in `to`. Without a trailing slash, which would make a directory of a file.
fn below(to: &Path, from: &Path, at: &Path) -> PathBuf {
    match at.strip_prefix(from) {
        Ok(inner) if inner.as_os_str().is_empty() => to.to_owned(),
        Ok(inner) => to.join(inner),
        Err(_) => at.to_owned(),
    }
}
