//! Trees that are harmless here and write elsewhere where they are checked out: on a system that takes two names for one.

use std::collections::HashMap;

use super::history::path_of;
use super::index::Index;
use super::trees::LINK;
use crate::model::ResourcePath;
use crate::policy::fold;

/// What one path becomes: its name, and its mode.
pub(super) type NewPath<'a> = (&'a ResourcePath, &'a str);

/// Why these paths, beside those of an index, are not released; none where nothing is wrong.
pub(super) fn of(new: &[NewPath<'_>], beside: &Index) -> Option<String> {
    let git = |part: &[u8]| fold(&ResourcePath::root().join(part)) == b".git";
    let hidden = new.iter().find(|(path, _)| path.parts().any(git));
    if let Some((path, _)) = hidden {
        return Some(format!(
            "'{path}' lies in the git directory where names are compared without case"
        ));
    }
    let known = beside.links().filter_map(|path| path_of(path).ok());
    let made = new.iter().filter(|(_, mode)| *mode == LINK);
    let made: Vec<ResourcePath> = made.map(|(path, _)| (*path).clone()).collect();
    let all = known.chain(made.iter().cloned());
    let links: HashMap<Vec<u8>, ResourcePath> = all.map(|path| (fold(&path), path)).collect();
    let through = |path: &ResourcePath| {
        let dirs = path.ancestors();
        let mut found = dirs.filter_map(|dir| Some((links.get(&fold(&dir))?, dir)));
        found.find(|(link, dir)| *link != dir)
    };
    let mut crossed = new.iter().filter_map(|(path, _)| {
        let (link, dir) = through(path)?;
        Some((link.clone(), dir, (*path).clone()))
    });
    let found = crossed.next().or_else(|| {
        // A new link may stand beside a directory that was there.
        let mut known = beside.entries.keys().filter(|_| !made.is_empty());
        known.find_map(|path| {
            let path = path_of(path).ok()?;
            let (link, dir) = through(&path).filter(|(link, _)| made.contains(link))?;
            Some((link.clone(), dir, path))
        })
    });
    found.map(|(link, dir, path)| {
        format!(
            "the link '{link}' stands beside the directory '{dir}': where names are compared without case '{path}' would be written through it; \
             rename one of them inside"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Paths<'a> = &'a [(&'a str, &'a str)];

    fn found(new: Paths<'_>, beside: Paths<'_>) -> Option<String> {
        let paths: Vec<(ResourcePath, &str)> = new
            .iter()
            .map(|(path, mode)| (path_of(path.as_bytes()).expect("a path"), *mode))
            .collect();
        let new: Vec<NewPath<'_>> = paths.iter().map(|(path, mode)| (path, *mode)).collect();
        let mut index = Index::default();
        for (path, mode) in beside {
            let entry = ((*mode).to_owned(), String::new());
            let stages = [(0, entry)].into_iter().collect();
            index.entries.insert(path.as_bytes().to_vec(), stages);
        }
        of(&new, &index)
    }

    #[test]
    fn a_link_beside_a_directory_that_some_take_for_it_is_found() {
        let file = "100644";
        let rows: [(Paths<'_>, Paths<'_>, bool); 9] = [
            (&[("A", LINK), ("a/post-checkout", file)], &[], true),
            (&[("a/post-checkout", file)], &[("A", LINK)], true),
            (&[("A", LINK)], &[("a/post-checkout", file)], true),
            (&[("d/A.", LINK), ("D/a/x", file)], &[], true),
            (&[("sub/.GIT/hooks/x", file)], &[], true),
            (&[("git~1/x", file)], &[], true),
            (&[("a", LINK), ("b/x", file)], &[("A/y", file)], true),
            (&[("a", LINK), ("b/x", file)], &[("c/y", file)], false),
            (&[("b/x", file)], &[("A", LINK), ("a/y", file)], false),
        ];
        for (new, beside, dangerous) in rows {
            assert_eq!(
                found(new, beside).is_some(),
                dangerous,
                "{new:?} {beside:?}"
            );
        }
    }
}
