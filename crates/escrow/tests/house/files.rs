//! Files are small, name no machine, and link to what exists.

use crate::{files, none, root, sources};

const MOST_LINES: usize = 700;

fn size_fault(file: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    (lines > MOST_LINES).then(|| {
        format!("{file}: {lines} lines; a file is one concept and has at most {MOST_LINES}")
    })
}

#[test]
fn files_are_small() {
    none(
        sources("")
            .iter()
            .filter_map(|(file, text)| size_fault(file, text))
            .collect(),
    );
}

#[test]
fn large_files_are_seen() {
    assert!(size_fault("a.rs", &"\n".repeat(MOST_LINES)).is_none());
    assert!(size_fault("a.rs", &"\n".repeat(MOST_LINES + 1)).is_some());
}

/// Absolute paths that exist on another process's machine only. `/home/you` is the reader's.
fn machine_path_faults(file: &str, text: &str) -> Vec<String> {
    // Put together here, so that this file does not contain what it looks for.
    let places = [["/", "work/"], ["/", "root/"], ["/", "home/"]].map(|parts| parts.concat());
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for place in &places {
            for (at, _) in line.match_indices(place.as_str()) {
                // Inside a longer path it is an ordinary directory.
                let longer =
                    line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-~>)}]*/".contains(c));
                let rest = &line[at + place.len()..];
                let end = rest.find(|c: char| !(c.is_alphanumeric() || "._-".contains(c)));
                let name = &rest[..end.unwrap_or(rest.len())];
                let sample = place.ends_with("home/") && matches!(name, "" | "you");
                if !longer && !sample {
                    faults.push(format!(
                        "{file}:{}: a path of one machine: {place}{name}",
                        number + 1
                    ));
                }
            }
        }
    }
    faults
}

#[test]
fn no_machine_paths() {
    none(
        files()
            .iter()
            .flat_map(|(file, text)| machine_path_faults(file, text))
            .collect(),
    );
}

#[test]
fn machine_paths_are_seen() {
    let faults = |text: String| machine_path_faults("a.md", &text).len();
    assert_eq!(faults(["cd /", "work/main"].concat()), 1);
    assert_eq!(faults(["path = \"/", "root/.cargo\""].concat()), 1);
    assert_eq!(
        faults(["x\n`/", "home/alice/app` and (/", "home/bob)"].concat()),
        2
    );
    let home = ["/", "home/"].concat();
    let harmless = [
        format!("{home}you/app, {home}<name>, a{home}b"),
        ["<id>/", "work/, /proc/self/", "root/"].concat(),
    ];
    assert_eq!(faults(harmless.join(", ")), 0);
}

/// Relative links of a page that `exists` does not know. Code is not looked at.
fn link_faults(file: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            continue;
        }
        if in_code {
            continue;
        }
        // Even pieces lie outside of `code`; an odd piece keeps a mark for the link text it was.
        let prose: String = line
            .split('`')
            .enumerate()
            .map(|(i, part)| if i % 2 == 0 { part } else { "_" })
            .collect();
        let inline = prose
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', ' ']).next());
        let definition = prose
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "));
        let targets = inline.chain(definition.map(|(_, target)| target.trim()));
        for target in targets {
            let path = target.split('#').next().unwrap_or("");
            let elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !elsewhere && !path.is_empty() && !exists(path) {
                faults.push(format!("{file}: the link to {target} leads nowhere"));
            }
        }
    }
    faults
}

#[test]
fn docs_links_exist() {
    let pages = files()
        .into_iter()
        .filter(|(file, _)| file.ends_with(".md"));
    let faults = pages.flat_map(|(file, text)| {
        let from = root().join(&file);
        let from = from.parent().expect("a file has a directory").to_owned();
        link_faults(&file, &text, |target| from.join(target).exists())
    });
    none(faults.collect());
}

#[test]
fn broken_links_are_seen() {
    let faults = |text| link_faults("a.md", text, |target| target == "b.md").len();
    assert_eq!(faults("[b](c.md)"), 1);
    assert_eq!(
        faults("[b](b.md), [`c`](c.md#part) and [d](d.md \"title\")"),
        2
    );
    assert_eq!(faults("[c]: c.md"), 1);
    assert_eq!(
        faults(
            "[b](b.md#part) [w](https://example.org/x) [h](#here) `[c](c.md)`\n```\n[c](c.md)\n```"
        ),
        0
    );
}
