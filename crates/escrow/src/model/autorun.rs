//! Autorun files: files that a machine executes, or takes orders from, without being asked.
//!
//! A release puts them where git, an editor, a shell, a build or a service finds them, outside of every
//! sandbox. So they are shown apart, each with its reason, before anything is released. The list is a
//! help for the reviewer, not a boundary: code that another program loads can lie anywhere.

mod table;

use std::collections::HashSet;
use std::sync::LazyLock;

use super::change::{Change, ChangeKind, ChangedField, DiffView, EntryKind};
use super::path::ResourcePath;
use super::text::Location;

/// A change that will run later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutorunChange {
    /// Where.
    pub path: ResourcePath,
    /// What runs it.
    pub why: &'static str,
    /// How soon that may be: what weighs least comes first.
    pub weight: usize,
    /// Whether its name says so; otherwise it can be started.
    pub is_named: bool,
    /// Where it is, if the files do not show it.
    pub within: Option<String>,
}

/// The changes of a diff that will run later, in its order.
pub(crate) fn runs_later(diff: &DiffView) -> Vec<AutorunChange> {
    let names = |change: &Change| change.path.parts().map(fold).collect();
    named_so(diff, names)
}

/// The same for one file that lies at `at`: alone its name does not tell a hook from a text.
pub(crate) fn autorun_at(diff: &DiffView, at: &Location) -> Vec<AutorunChange> {
    let parts = at.as_bytes().split(|byte| *byte == b'/');
    let names: Vec<String> = parts.filter(|part| !part.is_empty()).map(fold).collect();
    named_so(diff, |_| names.clone())
}

fn named_so(diff: &DiffView, names: impl Fn(&Change) -> Vec<String>) -> Vec<AutorunChange> {
    let one = |change: &Change, within: Option<&String>| {
        let (weight, why) = why_of(change, &names(change))?;
        Some(AutorunChange {
            path: change.path.clone(),
            why,
            weight,
            is_named: weight < TABLE.len(),
            within: within.cloned(),
        })
    };
    let mut found: Vec<AutorunChange> = diff.changes.iter().filter_map(|c| one(c, None)).collect();
    // Of several versions that the files do not show, the first is named.
    let mut named = HashSet::new();
    for carried in diff.changes.iter().flat_map(Change::unseen) {
        let later = one(&carried.change, Some(&carried.within));
        found.extend(later.filter(|one| named.insert(one.path.clone())));
    }
    found
}

/// A pattern of the table: its names, and whether it means everything below them.
type NamePattern = (Vec<&'static str>, bool);

static TABLE: LazyLock<Vec<(&str, Vec<NamePattern>)>> = LazyLock::new(|| {
    let pattern = |text: &'static str| {
        let bare = text.strip_suffix('/');
        (bare.unwrap_or(text).split('/').collect(), bare.is_some())
    };
    let row = |(why, patterns): &(&'static str, &'static str)| {
        (*why, patterns.split_whitespace().map(pattern).collect())
    };
    table::TABLE.iter().map(row).collect()
});

/// Why a change will run later, and its place in the table; `None` where nothing says so. What is deleted runs no more.
fn why_of(change: &Change, names: &[String]) -> Option<(usize, &'static str)> {
    // Of what is no file's its strategy says whether it may run.
    let kind = match &change.new {
        Some(new) => new.kind,
        None if change.says("runs_later") && change.kind != ChangeKind::Deleted => EntryKind::File,
        None => return None,
    };
    if kind == EntryKind::Directory {
        // What is in it is listed by itself.
        return None;
    }
    let link = kind == EntryKind::Symlink;
    let named = TABLE.iter().enumerate().find(|(_, (_, patterns))| {
        let mut patterns = patterns.iter();
        patterns.any(|pattern| is_named(pattern, names, link))
    });
    let named = named.map(|(weight, (why, _))| (weight, *why));
    named.or_else(|| executable(change).map(|why| (TABLE.len(), why)))
}

/// Why a file that nothing names may run all the same: it can be started.
fn executable(change: &Change) -> Option<&'static str> {
    let starts = |mode: u16| mode & 0o111 != 0;
    let new = change.new.as_ref()?;
    if new.kind != EntryKind::File || !starts(new.mode) {
        return None;
    }
    match &change.old {
        Some(old) if old.kind == EntryKind::File && starts(old.mode) => {
            let other = change.kind == ChangeKind::Modified
                && change.fields.contains(&ChangedField::Content);
            other.then_some("an executable file with other content")
        }
        Some(old) if old.kind == EntryKind::File => Some("it becomes executable"),
        _ => Some("a new executable file"),
    }
}

/// Whether a pattern names this path. A link may stand for a directory, or for one that the directory
/// lies in.
fn is_named((wanted, below): &NamePattern, names: &[String], link: bool) -> bool {
    let alike = |window: &[String], wanted: &[&str]| {
        let mut pairs = window.iter().zip(wanted);
        window.len() == wanted.len() && pairs.all(|(name, pattern)| fits(pattern, name))
    };
    let whole = match below {
        // Something must lie in it.
        true => &names[..names.len().saturating_sub(1)],
        false => &names[names.len().saturating_sub(wanted.len())..],
    };
    let found = whole
        .windows(wanted.len())
        .any(|window| alike(window, wanted));
    let leads = |length: usize| {
        let start = names.len().checked_sub(length);
        start.is_some_and(|start| alike(&names[start..], &wanted[..length]))
    };
    let directories = wanted.len() - usize::from(!*below);
    found || (link && (1..=directories).any(leads))
}

fn fits(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (_, Some(start)) => name.starts_with(start),
        _ => name == pattern,
    }
}

/// A name as a file system that folds would compare it: without case, and without characters that have
/// no width.
fn fold(name: &[u8]) -> String {
    let shown = |c: &char| {
        !matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
    };
    let text = String::from_utf8_lossy(name);
    let upper = text.chars().filter(shown).flat_map(char::to_uppercase);
    upper.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::change::EntryInfo;

    fn facts(kind: EntryKind, mode: u16) -> EntryInfo {
        EntryInfo {
            kind,
            size: 1,
            mode,
            target: None,
        }
    }

    fn why(change: &Change) -> Option<&'static str> {
        let diff = DiffView::new(vec![change.clone()]);
        runs_later(&diff).first().map(|one| one.why)
    }

    fn path(text: &str) -> ResourcePath {
        ResourcePath::parse(text.as_bytes()).expect("a path")
    }

    fn added(text: &str, kind: EntryKind, mode: u16) -> Change {
        Change::added(path(text), facts(kind, mode))
    }

    const GIT: &str = "a git hook";
    const SETTINGS: &str = "git runs the programs that its settings name";
    const CI: &str = "a CI service runs it";
    const CONFIGURES: &str = "it configures the sandboxes of agents";
    const AGENT: &str = "a coding agent runs or obeys it";
    const EDITOR: &str = "an editor runs what it names";
    const SHELL: &str = "a shell or a terminal reads it when it starts";
    const CLOCK: &str = "it runs at login, or by the clock";
    const PACKAGE: &str =
        "a package manager runs the scripts it names, and those of what it fetches";
    const BUILD: &str = "builds, tests or installs run it";

    #[test]
    fn files_are_known_by_their_names() {
        let rows = [
            (".git/hooks/pre-commit", Some(GIT)),
            ("sub/.git/hooks/post-checkout", Some(GIT)),
            ("mirror.git/hooks/update", Some(GIT)),
            (".GIT/Hooks/pre-push", Some(GIT)),
            (".g\u{200c}it/hooks/pre-push", Some(GIT)),
            (".husky/pre-commit", Some(GIT)),
            (".pre-commit-config.yaml", Some(GIT)),
            (".git/config", Some(SETTINGS)),
            (".git/modules/lib/hooks/update", Some(SETTINGS)),
            (".gitconfig", Some(SETTINGS)),
            (".github/workflows/ci.yml", Some(CI)),
            (".GitHub/Workflows/ci.yml", Some(CI)),
            (".gitlab-ci.yml", Some(CI)),
            ("Jenkinsfile", Some(CI)),
            ("deploy/Jenkinsfile.release", Some(CI)),
            (".circleci/config.yml", Some(CI)),
            ("azure-pipelines.yml", Some(CI)),
            ("azure-pipelines-nightly.yml", Some(CI)),
            (".vscode/tasks.json", Some(EDITOR)),
            (".vscode/settings.json", Some(EDITOR)),
            (".idea/runConfigurations/app.xml", Some(EDITOR)),
            (".devcontainer/devcontainer.json", Some(EDITOR)),
            ("a.code-workspace", Some(EDITOR)),
            (".mcp.json", Some(AGENT)),
            ("sub/CLAUDE.md", Some(AGENT)),
            ("AGENTS.md", Some(AGENT)),
            (".codex/hooks.json", Some(AGENT)),
            (".github/copilot-instructions.md", Some(AGENT)),
            ("escrow.yaml", Some(CONFIGURES)),
            ("deep/er/Escrow.YAML", Some(CONFIGURES)),
            (".config/escrow/escrow.yaml", Some(CONFIGURES)),
            (".envrc", Some(SHELL)),
            ("deep/er/.envrc", Some(SHELL)),
            (".bashrc", Some(SHELL)),
            (".ba\u{17f}hrc", Some(SHELL)),
            (".zshrc", Some(SHELL)),
            (".profile", Some(SHELL)),
            (".config/fish/config.fish", Some(SHELL)),
            (".ssh/rc", Some(CLOCK)),
            (".config/autostart/x.desktop", Some(CLOCK)),
            ("etc/cron.d/job", Some(CLOCK)),
            ("package.json", Some(PACKAGE)),
            ("web/package.json", Some(PACKAGE)),
            ("PACKAGE.json", Some(PACKAGE)),
            ("package-lock.json", Some(PACKAGE)),
            ("web/yarn.lock", Some(PACKAGE)),
            ("pnpm-lock.yaml", Some(PACKAGE)),
            (".pnpmfile.cjs", Some(PACKAGE)),
            (".yarn/releases/yarn.cjs", Some(PACKAGE)),
            ("turbo.json", Some(PACKAGE)),
            ("Cargo.toml", Some(PACKAGE)),
            ("crates/x/Cargo.toml", Some(PACKAGE)),
            ("dev-requirements.txt", Some(PACKAGE)),
            ("requirements-dev.txt", Some(PACKAGE)),
            ("Gemfile.lock", Some(PACKAGE)),
            ("composer.json", Some(PACKAGE)),
            ("go.mod", Some(PACKAGE)),
            ("app.csproj", Some(PACKAGE)),
            (".lintstagedrc.json", Some(GIT)),
            (".huskyrc", Some(GIT)),
            ("simple-git-hooks.js", Some(GIT)),
            (".eslintrc.js", Some(BUILD)),
            ("hatch_build.py", Some(BUILD)),
            ("Directory.Build.targets", Some(BUILD)),
            ("binding.gyp", Some(BUILD)),
            (".npmrc", Some(PACKAGE)),
            ("Makefile", Some(BUILD)),
            ("ma\u{212a}efile", Some(BUILD)),
            ("rules.mk", Some(BUILD)),
            ("setup.py", Some(BUILD)),
            ("pyproject.toml", Some(PACKAGE)),
            ("crates/x/build.rs", Some(BUILD)),
            (".cargo/config.toml", Some(BUILD)),
            ("vite.config.ts", Some(BUILD)),
            ("docker/Dockerfile.dev", Some(BUILD)),
            // What only looks like it.
            ("hooks/pre-commit", None),
            ("git/hooks/pre-commit", None),
            (".git/hooks", None),
            (".git/HEAD", None),
            (".github/README.md", None),
            ("workflows/ci.yml", None),
            ("package.json.md", None),
            ("my-package.json", None),
            ("package.json/readme", None),
            ("requirements.md", None),
            ("cargo-toml", None),
            ("yarn.lock.md", None),
            ("src/main.rs", None),
            ("Makefiles/readme", None),
            ("bashrc", None),
            ("cargo/config.toml", None),
        ];
        assert!(rows.len() >= 80);
        for (name, expected) in rows {
            let change = added(name, EntryKind::File, 0o644);
            assert_eq!(why(&change), expected, "{name}");
        }
    }

    #[test]
    fn a_name_that_is_no_text_is_folded_too() {
        let path = ResourcePath::parse(b"\xff/.BASHRC").expect("a path");
        let change = Change::added(path, facts(EntryKind::File, 0o644));
        assert_eq!(why(&change), Some(SHELL));
    }

    #[test]
    fn a_link_may_stand_for_the_directory() {
        for name in [
            ".git",
            ".git/hooks",
            ".github",
            ".husky",
            ".config",
            "Makefile",
        ] {
            let change = added(name, EntryKind::Symlink, 0o777);
            assert!(why(&change).is_some(), "{name}");
            let directory = added(name, EntryKind::Directory, 0o755);
            assert_eq!(why(&directory), None, "{name}");
        }
        assert_eq!(why(&added("docs", EntryKind::Symlink, 0o777)), None);
        assert_eq!(why(&added("workflows", EntryKind::Symlink, 0o777)), None);
    }

    #[test]
    fn what_can_be_started_is_listed_and_what_goes_is_not() {
        let file = |mode| facts(EntryKind::File, mode);
        let between = |old, new, fields: &[ChangedField]| {
            let change = Change::between(path("tool"), file(old), file(new), fields.to_vec());
            why(&change.expect("they differ"))
        };
        assert_eq!(
            why(&added("tool", EntryKind::File, 0o755)),
            Some("a new executable file")
        );
        assert_eq!(why(&added("tool", EntryKind::File, 0o644)), None);
        assert_eq!(
            between(0o644, 0o744, &[ChangedField::Mode]),
            Some("it becomes executable")
        );
        assert_eq!(
            between(0o755, 0o755, &[ChangedField::Content]),
            Some("an executable file with other content")
        );
        assert_eq!(between(0o755, 0o700, &[ChangedField::Mode]), None);
        assert_eq!(
            between(0o755, 0o644, &[ChangedField::Content, ChangedField::Mode]),
            None
        );
        let hook = path(".git/hooks/pre-commit");
        assert_eq!(why(&Change::deleted(hook, file(0o755))), None);
    }
}
