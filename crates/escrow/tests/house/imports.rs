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

#[test]
fn imports_going_the_wrong_way_are_seen() {
    let faults = |file, text| import_faults(file, text).len();
    assert_eq!(faults("model/id.rs", "use crate::fs::walk;"), 1);
    assert_eq!(faults("model/id.rs", "use super::super::fs::walk;"), 1);
    assert_eq!(faults("fs/mod.rs", "use super::manager::Manager;"), 1);
    assert_eq!(
        faults(
            "fs/mod.rs",
            "mod inner { use super::super::manager::Manager; }"
        ),
        1
    );
    assert_eq!(
        faults("strategy/mod.rs", "fn f() { crate::store::open() }"),
        1
    );
    assert_eq!(
        faults(
            "store/mod.rs",
            "use crate::{model::{PlanId, fs}, strategy::Registry};"
        ),
        1
    );
    assert_eq!(
        faults("diff.rs", "use crate::{manager, commit::{self}};"),
        2
    );
    assert_eq!(
        faults("diff.rs", "use crate::Error;"),
        1,
        "the root hides where it comes from"
    );
    assert_eq!(
        faults("diff.rs", "#[cfg(not(test))] use crate::manager;"),
        1
    );
    assert_eq!(faults("cellar/mod.rs", ""), 1, "a module without a rank");
    assert_eq!(faults("lib.rs", "pub mod model; pub mod cellar;"), 1);

    assert_eq!(
        faults(
            "lib.rs",
            "pub mod model; pub use manager::Manager; #[cfg(test)] mod probe;"
        ),
        0
    );
    assert_eq!(
        faults(
            "strategy/overlay/layer.rs",
            "use super::super::registry; use crate::fs;"
        ),
        0
    );
    assert_eq!(
        faults(
            "manager.rs",
            "mod inner { use super::Manager; } pub(crate) use crate::store;"
        ),
        0
    );
    assert_eq!(
        faults(
            "diff.rs",
            "// use crate::manager;\nconst S: &str = r#\"crate::run::\"#;"
        ),
        0
    );
    assert_eq!(
        faults(
            "diff.rs",
            "#[cfg(test)] mod tests { fn f<'a>() {} use crate::manager; }"
        ),
        0
    );
    assert_eq!(
        faults(
            "diff.rs",
            "#[test] fn t() { crate::manager::x('{'); }\nuse crate::ensure!;"
        ),
        0
    );
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
