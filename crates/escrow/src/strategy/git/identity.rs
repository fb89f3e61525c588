//! Who the user is to git: by the settings of the repository and of its owner.

use super::super::error::Result;
use super::command::{Git, GitCall};
use super::repository::{Repository, line};
use crate::fs::accounts;

/// A call with the settings of the repository and of its owner; none where that has no home directory.
pub(super) fn users_call<'g>(git: &'g Git, repository: &Repository) -> Result<Option<GitCall<'g>>> {
    let owner = repository.dir()?.meta()?;
    let root = rustix::process::geteuid();
    let user = if root.is_root() {
        owner.uid
    } else {
        root.as_raw()
    };
    Ok(accounts::home_dir(user).map(|home| {
        let call = repository.call(git).owned_by(&owner);
        call.settings_of(home)
    }))
}

/// Name and address as git would take them.
pub(super) fn of(call: Option<GitCall<'_>>, variable: &str) -> Option<(String, String)> {
    let said = line(&call?.args(["var", variable]).run().ok()?);
    let (name, rest) = said.split_once(" <")?;
    let (mail, _) = rest.split_once('>')?;
    Some((name.to_owned(), mail.to_owned()))
}

/// Who the user is, as commits have it; none where no settings say so.
pub(super) fn user(git: &Git, repository: &Repository) -> Result<Option<String>> {
    let found = match users_call(git, repository)? {
        Some(call) => of(
            Some(call.set("user.useConfigOnly=true")),
            "GIT_AUTHOR_IDENT",
        ),
        // Who has no home directory has the settings of the repository.
        None => {
            let settings = repository.settings(git)?;
            let of = |key: &str| {
                let mut values = settings.iter().rev();
                let value = values.find(|(known, _)| known == key);
                value.map(|(_, value)| value.clone())
            };
            of("user.name").zip(of("user.email"))
        }
    };
    Ok(found.map(|(name, mail)| format!("{name} <{mail}>")))
}
