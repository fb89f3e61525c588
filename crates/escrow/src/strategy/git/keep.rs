//! The references that keep what sandboxes began from alive.

use rustix::io::Errno;

use super::command::Git;
use super::repository::{Head, RefMove, Repository};
use super::{GitWorktree, history, modules};
use crate::fs::Dir;
use crate::model::{PlanId, ResourceId};
use crate::strategy::error::Result;
use crate::strategy::{CreateRequest, Target};

/// The reference that keeps the base of a sandbox alive.
pub(super) fn keep_ref(plan: PlanId, resource: ResourceId) -> String {
    format!("refs/escrow/{plan}-{resource}")
}

impl GitWorktree {
    /// The repositories in which a sandbox of this resource may have been begun.
    pub(super) fn begun(&self, target: &Target) -> Result<Vec<Repository>> {
        // Without git, or in what is no repository to it, nothing was begun.
        let (Some(at), Ok(git)) = (target.path(), self.git.get_or_init(Git::find)) else {
            return Ok(Vec::new());
        };
        let Some(repository) = Repository::there(git, at)? else {
            return Ok(Vec::new());
        };
        let modules = modules::git_dirs(&repository)?;
        let modules = modules.iter().map(|dir| Repository::in_dir(git, dir));
        modules.chain([Ok(repository.clone())]).collect()
    }

    /// Keeps the base of a new sandbox alive, whatever the user's git collects.
    pub(super) fn keep(
        &self,
        request: &CreateRequest<'_>,
        repository: &Repository,
        head: &Head,
        area: &Dir,
    ) -> Result<()> {
        let (git, name) = (
            self.git()?,
            keep_ref(request.plan_id, request.target.resource_id),
        );
        let repository = repository.shared();
        repository.settle_locks(&name, area)?;
        let old = repository.value(git, &name)?;
        if head.commit.is_none() || old == head.commit {
            return Ok(());
        }
        let kept = RefMove {
            name,
            old,
            new: head.commit.clone(),
        };
        repository.move_refs(git, &[kept], "escrow: keep the base", Some(area))
    }

    /// Removes the reference that kept the base alive.
    pub(super) fn forget(
        &self,
        repository: &Repository,
        name: &str,
        area: Option<&Dir>,
    ) -> Result<()> {
        let git = self.git()?;
        if let Some(area) = area {
            repository.settle_locks(name, area)?;
        }
        // Only a process of ours can have locked it: one that died, or a git that could not remove its lock.
        let lock = history::path_of(format!("{name}.lock").as_bytes())?;
        let shared = Dir::open(repository.common())?;
        let unlock = || match shared.stat_path(&lock)? {
            Some(_) => {
                let (parent, name) = shared.parent(&lock)?;
                parent.unlink(name)
            }
            None => Ok(()),
        };
        unlock()?;
        if let Some(old) = repository.value(git, name)? {
            let gone = RefMove {
                name: name.to_owned(),
                old: Some(old),
                new: None,
            };
            repository.move_refs(git, &[gone], "escrow: cleanup", area)?;
        }
        unlock()?;
        // The directory of the last such reference goes with it, and that of their reflogs, which some settings ask for.
        for above in ["logs/refs", "refs"] {
            let above = match Dir::open(&repository.common().join(above)) {
                Err(error) if error.is_absent() => continue,
                above => above?,
            };
            match above.remove_dir(b"escrow") {
                Err(error) if error.is(Errno::NOTEMPTY) => above.subdir(b"escrow")?.sync()?,
                Err(error) if error.is_absent() => above.sync()?,
                done => done.and_then(|()| above.sync())?,
            }
        }
        // Git syncs no directory; a reference that came back after a power cut would stay for ever.
        shared.sync()?;
        Ok(())
    }
}
