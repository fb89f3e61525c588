//! What is released is what was judged: it is read once more, from nothing that an agent wrote.
//!
//! Objects of the private git directory are known to git by names that are not compared with their contents, and one of
//! them may stand before one of the user's. The pack of a release was compared, and the user's own are the user's.

use std::collections::HashSet;

use super::super::error::{Result, StrategyError};
use super::carried::{Beside, Carrying};
use super::history::{Graph, History, is_released};
use super::intent::{self, Release};
use super::session::GitSession;
use super::{refused, trees};
use crate::fs::{Dir, remove};
use crate::model::{Change, DiffView, ResourcePath};

/// Where the pack is, for git, while it is read.
const CHECKED: &[u8] = b"checked";

/// Why what was looked at may be something else.
pub(super) const FALSE_NAMES: &str =
    "objects in the private git directory are not what their names say";

type Judged<'a> = HashSet<(&'a str, &'a ResourcePath, Option<&'a String>)>;

impl GitSession {
    /// Refuses a release that changes anything that these changes do not carry.
    pub(super) fn check_released(
        &self,
        history: &History,
        release: &Release,
        changes: &[Change],
        area: &Dir,
    ) -> Result<()> {
        remove::remove(area, CHECKED)?;
        area.make_dir(CHECKED, 0o700)?;
        let objects = area.subdir(CHECKED)?;
        objects.make_dir(b"pack", 0o700)?;
        let pack = objects.subdir(b"pack")?;
        // Not every file system has hard links.
        let names = intent::packs(area)?;
        let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        for name in &names {
            area.rename(name, &pack, name)?;
        }
        let own = vec![self.sandbox.repository.objects(), objects.path().to_owned()];
        let found = self.compare_judged(&history.clone().with_objects(own), release, changes);
        for name in &names {
            pack.rename(name, area, name)?;
        }
        remove::remove(area, CHECKED)?;
        match found {
            Err(StrategyError::Git { said, .. }) => Err(forged(&said)),
            found => found,
        }
    }

    fn compare_judged(
        &self,
        history: &History,
        release: &Release,
        changes: &[Change],
    ) -> Result<()> {
        let carried = changes.iter().filter(|one| is_released(one));
        let carried = carried.flat_map(Change::carried);
        let paths: HashSet<&[u8]> = carried
            .clone()
            .map(|one| one.change.path.as_bytes())
            .collect();
        let judged: Judged<'_> = carried
            .map(|one| (one.within.as_str(), &one.change.path, one.ids.1.as_ref()))
            .collect();
        let none = DiffView::default();
        let beside = Beside {
            files: &none,
            now: false,
            index: None,
            work: None,
            objects: None,
        };
        let carrying = Carrying::of(self, history, &beside);
        let rows = carrying.rows(changes);
        let tips: Vec<&str> = rows.iter().map(|row| row.new.as_str()).collect();
        let known = self.sandbox.head.commit.iter();
        let graph = match tips.iter().all(|tip| tip.is_empty()) {
            true => None,
            false => Some(Graph::read(history, &self.program, &tips, known)?),
        };
        let commits = carrying.commits(&rows, graph.as_ref());
        let moves = self.released_trees(history, release)?;
        let ids = commits.iter().flatten().map(|(id, _)| *id);
        let pairs = moves.iter().flatten().map(String::as_str);
        let input: String = ids.chain(pairs).flat_map(|line| [line, "\n"]).collect();
        let differ = trees::of_many(history.call(&self.program), input.into_bytes())?;
        for (row, commits) in rows.iter().zip(&commits) {
            for one in carrying.versions(row, commits, None, &differ)? {
                let id = one.new.as_ref().map(|(_, id)| id);
                if !judged.contains(&(&one.within, &one.path, id)) {
                    let what = format!("{} changes {}, which was not seen", one.within, one.path);
                    return Err(forged(&what));
                }
            }
        }
        let of = |pair: &String| -> HashSet<&[u8]> {
            let all = differ.get(pair).into_iter().flatten();
            all.map(|one| one.path.as_slice()).collect()
        };
        let mut known = paths.clone();
        for [user, base] in &moves {
            // What the user has already, and what the user took back since, is none of it.
            let (user, base) = (of(user), of(base));
            if let Some(path) = user
                .iter()
                .find(|path| base.contains(*path) && !paths.contains(*path))
            {
                return Err(unseen(path));
            }
            known.extend(user);
        }
        let mut staged = release.index.iter().map(|one| one.path.as_bytes());
        match staged.find(|path| !known.contains(path)) {
            Some(path) => Err(unseen(path)),
            None => Ok(()),
        }
    }

    /// The trees between which the references of a release move: from where the user has them, and from where they began.
    fn released_trees(&self, history: &History, release: &Release) -> Result<Vec<[String; 2]>> {
        let empty = trees::empty_tree(&self.sandbox.repository.format);
        let head = &self.sandbox.head;
        let main = head.branch.as_deref().unwrap_or("HEAD");
        let tree = |commit: Option<&String>| match commit {
            Some(id) => format!("{id}^{{tree}}\n"),
            None => format!("{empty}\n"),
        };
        let mut asked = String::new();
        for one in &release.moves {
            let (Some(new), true) = (&one.new, one.old.is_some() || one.name == main) else {
                continue;
            };
            let base = match one.name == main {
                true => head.commit.as_ref(),
                false => one.old.as_ref(),
            };
            asked += &(tree(one.old.as_ref()) + &tree(base) + &tree(Some(new)));
        }
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let call = history.call(&self.program);
        let said = call.args(["cat-file", "--batch-check=%(objectname)"]);
        let said = String::from_utf8_lossy(&said.input(asked).run()?).into_owned();
        let trees: Vec<&str> = said.lines().collect();
        let pairs = trees.chunks(3).filter_map(|all| match all {
            [old, base, new] => Some([format!("{old} {new}"), format!("{base} {new}")]),
            _ => None,
        });
        Ok(pairs.collect())
    }
}

/// Says what is not as it was judged.
fn forged(what: &str) -> StrategyError {
    refused("commit this history", &format!("{what}; {FALSE_NAMES}"))
}

fn unseen(path: &[u8]) -> StrategyError {
    forged(&format!(
        "it changes {}, which was not seen",
        trees::shown(path)
    ))
}
