//! Every rule is proved by a test, or known to be pending.

use std::collections::BTreeSet;

use crate::rust::{Kind, tokens};
use crate::{none, read, sources};

/// What was not built when the list began. The pending list only shrinks: nothing is added here.
const FIRST_PENDING: &str = "P2 P8 P9 F7 S6 S7 \
    C1 C2 C3 C4 C5 C6 C7 C8 C9 C10 C11 C12 C13 C14 C15 C16 C17 \
    R1 R2 R3 R4 R5 G1 G2 G3 G4 G5 G6";

/// A rule named by a comment `// rule C4, C5`.
struct Citation {
    place: String,
    rule: String,
    /// Whether it stands in test code; elsewhere it is a reference, not a proof.
    proves: bool,
}

fn is_rule_id(word: &str) -> bool {
    let digits = word
        .strip_prefix(|c: char| c.is_ascii_uppercase())
        .unwrap_or("");
    matches!(digits.len(), 1 | 2) && digits.bytes().all(|b| b.is_ascii_digit())
}

/// The ids in lines that begin `**C4**`, with or without a bullet.
fn rule_ids(markdown: &str) -> Vec<&str> {
    let bold = markdown
        .lines()
        .filter_map(|line| line.trim_start_matches("- ").strip_prefix("**"));
    let ids = bold.filter_map(|rest| rest.split_once("**").map(|(id, _)| id));
    ids.filter(|id| is_rule_id(id)).collect()
}

/// The ids in lines `- C4: why it is pending`.
fn pending_ids(markdown: &str) -> Vec<&str> {
    let items = markdown.lines().filter_map(|line| line.strip_prefix("- "));
    items
        .map(|item| item.split_once(':').map_or(item, |(id, _)| id))
        .collect()
}

/// The citations in one file. Test code is all of `tests/`, `bench/` and the conformance suite, and
/// elsewhere what `#[cfg(test)]` says.
fn citations(file: &str, text: &str) -> Vec<Citation> {
    let all =
        file.contains("/tests/") || file.starts_with("bench/") || file.contains("conformance");
    let mut found = Vec::new();
    for token in tokens(text) {
        let Kind::Comment(comment) = token.kind else {
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim_start();
        let Some(list) = comment.strip_prefix("rule ") else {
            continue;
        };
        for part in list.split(',') {
            let word = part.split_whitespace().next().unwrap_or("");
            let word = word.trim_end_matches([':', ';', '.', ')']);
            if !word.starts_with(|c: char| c.is_ascii_uppercase())
                || !word.contains(|c: char| c.is_ascii_digit())
            {
                break; // prose
            }
            found.push(Citation {
                place: file.to_owned(),
                rule: word.to_owned(), // a range such as `C1-C4` is no id, and is reported as unknown
                proves: all || token.in_test,
            });
        }
    }
    found
}

fn rule_faults(rules: &str, pending: &str, citations: &[Citation]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut known = BTreeSet::new();
    for id in rule_ids(rules) {
        if !known.insert(id) {
            faults.push(format!("rules.md: {id} is there twice"));
        }
    }
    let pending: BTreeSet<&str> = pending_ids(pending).into_iter().collect();
    let proved: BTreeSet<&str> = citations
        .iter()
        .filter(|c| c.proves)
        .map(|c| c.rule.as_str())
        .collect();
    for id in &known {
        match (proved.contains(id), pending.contains(id)) {
            (false, false) => faults.push(format!("{id}: no test cites it (`// rule {id}`)")),
            (true, true) => faults.push(format!("{id}: a test cites it; take it off pending.md")),
            _ => {}
        }
    }
    for id in pending.iter().filter(|id| !known.contains(*id)) {
        faults.push(format!("pending.md: {id} is not a rule"));
    }
    let first: BTreeSet<&str> = FIRST_PENDING.split_whitespace().collect();
    for id in pending.difference(&first) {
        faults.push(format!("pending.md: {id} was added; the list only shrinks"));
    }
    for Citation { place, rule, .. } in citations
        .iter()
        .filter(|c| !known.contains(c.rule.as_str()))
    {
        faults.push(format!("{place}: cites {rule}, which is not a rule"));
    }
    faults
}

#[test]
fn every_rule_is_cited_or_pending() {
    let sources = sources("");
    let citations: Vec<Citation> = sources
        .iter()
        .flat_map(|(file, text)| citations(file, text))
        .collect();
    none(rule_faults(
        &read("docs/spec/rules.md"),
        &read("docs/spec/pending.md"),
        &citations,
    ));
}

#[test]
fn rules_without_proof_are_seen() {
    let rules = "# Rules\n**P1** One.\n- **C1** Two.\n\n**note** no rule\n";
    let faults = |pending: &str, file: &str, source: &str| {
        rule_faults(rules, pending, &citations(file, source))
    };
    let test = "crates/escrow/tests/x.rs";
    assert_eq!(
        faults("text\n- C1: later", test, "// rule P1: prose, and more"),
        [""; 0]
    );
    assert_eq!(faults("", test, "// rule P1, C1"), [""; 0]);
    let sample = |faults: Vec<String>, expected: &str| {
        assert!(
            faults.len() == 1 && faults[0].contains(expected),
            "{faults:?}"
        );
    };
    sample(faults("", test, "// rule P1"), "C1: no test cites it");
    sample(
        faults("- C1: later", test, "let s = \"// rule P1\";"),
        "P1: no test cites it",
    );
    sample(
        faults("- C1: later", "crates/escrow/src/x.rs", "// rule P1"),
        "P1: no test cites it",
    );
    let inside = "#[cfg(test)] mod tests {\n // rule P1\n #[test] fn a() {} }";
    assert_eq!(
        faults("- C1: later", "crates/escrow/src/x.rs", inside),
        [""; 0]
    );
    sample(
        faults("- C1: later", test, "// rule P1, C1"),
        "C1: a test cites it",
    );
    sample(faults("", test, "// rule P1, C1, Z9"), "cites Z9");
    sample(
        faults("- C1: later", test, "// rule P1\n// rule C1-C4"),
        "cites C1-C4",
    );
    assert_eq!(
        faults("- C1: later\n- Q1: never", test, "// rule P1").len(),
        2,
        "unknown and added"
    );
    sample(
        rule_faults("**C1** a\n**C1** b", "- C1: later", &[]),
        "twice",
    );
    sample(rule_faults("**P1** a", "- P1: later", &[]), "P1 was added");
}
