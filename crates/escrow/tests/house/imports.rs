//! Imports go one way.

use std::collections::BTreeSet;

use crate::rust::{Kind, Token, tokens};
use crate::{none, read, sources};

/// The engine's top-level modules, lowest first. A module may use those of its own rank and below.
/// A new module gets its place here deliberately; `docs/architecture.md` says what each is for.
const RANKS: &[(&str, u8)] = &[
    ("event", 0),
    ("failpoints", 0),
    ("model", 0),
    ("fs", 1),
    ("agents", 2),
    ("policy", 1),
    ("strategy", 2),
    ("store", 2),
    ("resource", 2),
    ("run", 2),
    ("config", 2),
    ("error", 3),
    ("diff", 3),
    ("commit", 4),
    ("manager", 5),
    ("internals", 6),
];

/// Neighbours of one rank that must not know each other.
const STRANGERS: &[(&str, &str)] = &[("strategy", "store"), ("store", "strategy")];

fn rank(module: &str) -> Option<u8> {
    let found = RANKS.iter().find(|(name, _)| *name == module);
    found.map(|(_, rank)| *rank)
}

/// What is wrong with the imports of one file; `file` is relative to the engine's `src`.
fn import_faults(file: &str, text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let module = module_path(file);
    let Some(own) = module.first() else {
        // The crate root sees everything, but what it declares must have a place.
        let unknown = declared_modules(&tokens, |in_test| !in_test);
        let unknown = unknown.iter().filter(|name| rank(name).is_none());
        return unknown.map(|name| no_place(file, name)).collect();
    };
    let Some(own_rank) = rank(own) else {
        return vec![no_place(file, own)];
    };
    let mut faults = Vec::new();
    for used in root_references(&tokens, module.len()) {
        match rank(used) {
            None => faults.push(format!(
                "{file}: names `{used}` through the crate root; name the module it lives in, or give it a rank"
            )),
            Some(rank) if rank > own_rank => {
                faults.push(format!("{file}: `{own}` imports `{used}`, which stands above it"));
            }
            Some(_) if STRANGERS.contains(&(own, used)) => {
                faults.push(format!("{file}: `{own}` must not know `{used}`"));
            }
            Some(_) => {}
        }
    }
    faults
}

fn no_place(file: &str, module: &str) -> String {
    format!("{file}: module `{module}` has no rank; give it one in RANKS")
}

/// `strategy/overlay/mod.rs` is `[strategy, overlay]`; `lib.rs` is the root, `[]`.
fn module_path(file: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
    if parts.last() == Some(&"mod") || parts == ["lib"] {
        parts.pop();
    }
    parts
}

/// The first names after `crate::`, or after as many `super::` as lead to the root, outside of
/// test code. `depth` is how far below the root the file's module is.
fn root_references<'a>(tokens: &[Token<'a>], depth: usize) -> Vec<&'a str> {
    let code: Vec<&Token> = tokens
        .iter()
        .filter(|t| !t.in_test && !t.is_comment())
        .collect();
    let kind = |at: usize| code.get(at).map(|t| &t.kind);
    let mut found = Vec::new();
    let mut braces = Vec::new(); // true for each open brace of an inline module
    let mut at = 0;
    while at < code.len() {
        let start = at;
        at += 1;
        match code[start].kind {
            Kind::Sign('{') => braces.push(start >= 2 && code[start - 2].kind == Kind::Word("mod")),
            Kind::Sign('}') => {
                braces.pop();
            }
            Kind::Word(word @ ("crate" | "super")) if kind(at) == Some(&Kind::PathSep) => {
                at += 1;
                let mut climbed = 1;
                while word == "super" && kind(at) == Some(&Kind::Word("super")) {
                    climbed += 1;
                    at += 2;
                }
                let inline = braces.iter().filter(|is_module| **is_module).count();
                if word == "crate" || climbed == depth + inline {
                    found.extend(first_names(&code[at..]));
                }
            }
            _ => {}
        }
    }
    found
}

/// `a::b` names `a`; `{a::b, c}` names `a` and `c`; a macro names nothing.
fn first_names<'a>(code: &[&Token<'a>]) -> Vec<&'a str> {
    let mut names = Vec::new();
    let (mut open, mut expected) = (0, true);
    for (at, token) in code.iter().enumerate() {
        let is_macro = || {
            code.get(at + 1)
                .is_some_and(|next| next.kind == Kind::Sign('!'))
        };
        match token.kind {
            Kind::Sign('{') => {
                expected = open == 0;
                open += 1;
            }
            Kind::Sign('}') => open -= 1,
            Kind::Sign(',') if open == 1 => expected = true,
            Kind::Sign('*') if expected => names.push("*"),
            Kind::Word(name) if expected && name != "self" && !is_macro() => names.push(name),
            _ => {}
        }
        if open == 0 {
            break;
        }
        if matches!(token.kind, Kind::Word(_)) {
            expected = false;
        }
    }
    names
}

/// The `mod name;` and `mod name {` of a file, of which `wanted` likes the place (test code or not).
fn declared_modules<'a>(tokens: &[Token<'a>], wanted: fn(bool) -> bool) -> Vec<&'a str> {
    let code: Vec<&Token> = tokens.iter().filter(|t| !t.is_comment()).collect();
    let pairs = code.windows(2).filter(|pair| wanted(pair[0].in_test));
    let names = pairs.filter_map(|pair| match (&pair[0].kind, &pair[1].kind) {
        (Kind::Word("mod"), Kind::Word(name)) => Some(*name),
        _ => None,
    });
    names.collect()
}

#[test]
fn imports_go_one_way() {
    let files = sources("crates/escrow/src/");
    assert!(!files.is_empty(), "no source of the engine was found");
    // `#[cfg(test)] mod tests;` makes test code of a whole file and of all below it.
    let mut test_modules = BTreeSet::new();
    for (file, text) in &files {
        for name in declared_modules(&tokens(text), |in_test| in_test) {
            let mut path = module_path(file);
            path.push(name);
            test_modules.insert(path);
        }
    }
    let is_test = |file| {
        let path = module_path(file);
        (1..=path.len()).any(|depth| test_modules.contains(&path[..depth]))
    };
    let production = files.iter().filter(|(file, _)| !is_test(file));
    none(
        production
            .flat_map(|(file, text)| import_faults(file, text))
            .collect(),
    );
}

/// How many faults, in which file, with which text.
const WRONG: &str = r##"
1 | model/id.rs | use crate::fs::walk;
1 | model/id.rs | use super::super::fs::walk;
1 | fs/mod.rs | use super::manager::Manager;
1 | fs/mod.rs | mod inner { use super::super::manager::Manager; }
1 | strategy/mod.rs | fn f() { crate::store::open() }
1 | store/mod.rs | use crate::{model::{PlanId, fs}, strategy::Registry};
2 | diff.rs | use crate::{manager, commit::{self}};
1 | diff.rs | use crate::Error;
1 | diff.rs | #[cfg(not(test))] use crate::manager;
1 | cellar/mod.rs | // a module without a rank
1 | lib.rs | pub mod model; pub mod cellar;
0 | lib.rs | pub mod model; pub use manager::Manager; #[cfg(test)] mod probe;
0 | strategy/overlay/layer.rs | use super::super::registry; use crate::fs;
0 | manager.rs | mod inner { use super::Manager; } pub(crate) use crate::store;
0 | diff.rs | // use crate::manager;
0 | diff.rs | const S: &str = r#"crate::run::"#;
0 | diff.rs | #[cfg(test)] mod tests { fn f<'a>() {} use crate::manager; }
0 | diff.rs | #[test] fn t() { crate::manager::x('{'); } use crate::ensure!;
"##;

#[test]
fn imports_going_the_wrong_way_are_seen() {
    for row in WRONG.lines().skip(1) {
        let cells: Vec<&str> = row.splitn(3, " | ").collect();
        let faults = import_faults(cells[1], cells[2]);
        assert_eq!(faults.len().to_string(), cells[0], "{row}: {faults:?}");
    }
}

/// What the executor and the manager may use of `fs`: nothing in it knows what a tree is made of.
const OPEN_TO_ALL: [&str; 6] = [
    "process",
    "state_dir",
    "accounts",
    "workspace",
    "layering",
    "caches",
];

/// The modules of `strategy` that are the contract; the others belong to single strategies.
const CONTRACT: [&str; 4] = ["conformance", "error", "preview", "registry"];

/// What `commit` and `manager` still use of the tree code, and why. The list only shrinks: what is not used any more is
/// a fault, too.
const TREES: &str = "
manager/content.rs | Dir content | spools what is written, and reads originals for patches
manager/disk.rs | usage | adds up what areas take
manager/garbage/find.rs | Stamp areas | finds areas that belong to no plan
manager/garbage/orphans.rs | areas | finds areas that belong to no plan
manager/mod.rs | Dir Resolver | holds its home open, and says how paths are resolved
manager/recovery.rs | times | gives parents of areas their times back after a crash
manager/runs.rs | exposure | mounts the layers of a run and watches who can write them
manager/scratch.rs | overlay | lays a layer over the home directory, and compares it
manager/status.rs | Resolver | says how paths are resolved
";

/// The names after `module::` in code that is no test, whatever leads there.
fn names_of<'a>(tokens: &[Token<'a>], module: &str) -> BTreeSet<&'a str> {
    let code: Vec<&Token> = tokens
        .iter()
        .filter(|t| !t.in_test && !t.is_comment())
        .collect();
    let mut found = BTreeSet::new();
    for at in 0..code.len().saturating_sub(2) {
        let std = at >= 2 && code[at - 2].kind == Kind::Word("std");
        let is = code[at].kind == Kind::Word(module) && code[at + 1].kind == Kind::PathSep;
        if is && !std {
            found.extend(first_names(&code[at + 2..]));
        }
    }
    found
}

/// What a file uses of the tree code.
fn trees<'a>(tokens: &[Token<'a>], of_strategies: &[String]) -> BTreeSet<&'a str> {
    let mut found = names_of(tokens, "fs");
    found.retain(|name| !OPEN_TO_ALL.contains(name));
    let strategy = names_of(tokens, "strategy").into_iter();
    found.extend(strategy.filter(|name| of_strategies.iter().any(|one| one == name)));
    found
}

#[test]
fn commit_and_manager_know_no_trees() {
    let contract = read("crates/escrow/src/strategy/mod.rs");
    let modules = declared_modules(&tokens(&contract), |in_test| !in_test);
    let modules = modules.into_iter().filter(|name| !CONTRACT.contains(name));
    let modules: Vec<String> = modules.map(str::to_owned).collect();
    assert!(
        modules.len() > 3,
        "the strategies have modules: {modules:?}"
    );
    let used = |text: &str| trees(&tokens(text), &modules).len();
    assert_eq!(
        used("use crate::fs::{Dir, process::Id}; use super::super::fs::walk;"),
        2
    );
    assert_eq!(
        used("use crate::strategy::{Sandbox, overlay}; fn f() { crate::strategy::copy::x() }"),
        2
    );
    assert_eq!(
        used("use std::fs::File; use crate::strategy::registry; #[cfg(test)] use crate::fs::Dir;"),
        0
    );
    let mut known = BTreeSet::new();
    for row in TREES.lines().filter(|row| !row.is_empty()) {
        let [file, names, reason] = row.splitn(3, " | ").collect::<Vec<_>>()[..] else {
            panic!("a file, names and a reason: {row}");
        };
        assert!(!reason.is_empty(), "{row}");
        known.extend(
            names
                .split(' ')
                .map(|name| (file.to_owned(), name.to_owned())),
        );
    }
    let mut found = BTreeSet::new();
    for (file, text) in sources("crates/escrow/src/") {
        if matches!(module_path(&file)[..], ["commit" | "manager", ..]) {
            let names = trees(&tokens(&text), &modules);
            found.extend(
                names
                    .into_iter()
                    .map(|name| (file.clone(), name.to_owned())),
            );
        }
    }
    let new = found
        .difference(&known)
        .map(|(file, name)| format!("{file}: names `{name}`, which belongs to trees"));
    let gone = known
        .difference(&found)
        .map(|(file, name)| format!("{file}: `{name}` is not used any more; strike it from TREES"));
    none(new.chain(gone).collect());
}

#[test]
fn the_command_line_knows_no_database() {
    let names_it = |text: &str| {
        tokens(text)
            .iter()
            .any(|t| t.kind == Kind::Word("rusqlite"))
    };
    assert!(names_it("use rusqlite::Connection;"), "the check can fail");
    let mut files = sources("crates/escrow-cli/");
    files.push((
        "Cargo.toml".to_owned(),
        read("crates/escrow-cli/Cargo.toml"),
    ));
    let faults = files.iter().filter(|(_, text)| names_it(text));
    none(
        faults
            .map(|(file, _)| format!("crates/escrow-cli/{file}: names rusqlite; ask the engine"))
            .collect(),
    );
}
