//! What is written down is true: the sessions of the README and the guides, the demo, the reference, the tables.
//! With `ESCROW_BLESS=1` generated documents are written instead of compared.

use crate::*;

/// Whether a line is what was expected; `…` stands for anything.
fn matches(expected: &str, found: &str) -> bool {
    let Some((before, after)) = expected.split_once('…') else {
        return expected == found;
    };
    found.len() >= before.len() + after.len() && found.starts_with(before) && found.ends_with(after)
}

/// The commands in the `console` blocks of a document, each with the output it promises. A block of another language with the name of
/// a file is that file.
fn sessions(document: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let (mut inside, mut file) = (false, None::<String>);
    for line in document.lines() {
        if let Some(opened) = line.strip_prefix("```") {
            if let Some(text) = file.take() {
                found.push((format!("{text}END\n"), Vec::new()));
            }
            inside = opened == "console";
            let name = opened.split_once(' ').map(|(_, name)| name);
            file = name.map(|name| format!("cat > {name} <<'END'\n"));
        } else if let Some(text) = &mut file {
            text.push_str(&format!("{line}\n"));
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            found.push((command.to_owned(), Vec::new()));
        } else if let Some((_, output)) = found.last_mut().filter(|_| inside) {
            output.push(line.to_owned());
        }
    }
    found
}

/// Runs a shell line in a world with `escrow`, and stand-ins for coding agents, on the path; both streams, in their order.
fn shell(world: &World, line: &str) -> String {
    let bin = binary();
    let bin = bin.parent().expect("the binary lies in a directory");
    let agents = repository().join("crates/escrow-cli/tests/cli/stand_ins");
    let path = format!(
        "{}:{}:{}",
        bin.display(),
        agents.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    // What a command does not get of the variables is said, so these are the same everywhere.
    let usual = ["CARGO", "LANG", "RUST", "TERM", "TMPDIR", "USER"];
    let usual = |(name, _): &(String, String)| usual.iter().any(|one| name.starts_with(one));
    let output = Command::new("sh")
        .args(["-c", &format!("exec 2>&1; {line}")])
        .env_clear()
        .envs(std::env::vars().filter(usual))
        .env("PATH", path)
        .env("HOME", world.dir("user-home"))
        .env("ESCROW_HOME", world.home())
        .current_dir(world.path())
        .output()
        .expect("there is a shell");
    let holds = output.status.success();
    assert!(holds, "{line}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout).expect("a page shows text")
}

/// Runs every `console` block of a page in a world of its own; the output is what the page shows.
fn tells_the_truth(page: &Path) {
    let world = World::new();
    let name = page.display();
    for (command, expected) in sessions(&read(page)) {
        let output = shell(&world, &command);
        let found: Vec<&str> = output.lines().collect();
        let same = found.len() == expected.len()
            && expected
                .iter()
                .zip(&found)
                .all(|(expected, found)| matches(expected, found));
        assert!(
            same,
            "{name}:\n$ {command}\nexpected:\n{}\nfound:\n{output}",
            expected.join("\n")
        );
    }
}

#[test]
fn the_readme_tells_the_truth() {
    let page = repository().join("README.md");
    let holds = sessions(&read(&page)).len() > 5;
    assert!(holds, "the README has no session");
    tells_the_truth(&page);
}

#[test]
fn the_guides_tell_the_truth() {
    let docs = repository().join("docs");
    let mut pages = paths(docs.join("guides"));
    pages.push(docs.join("configuration.md"));
    for page in &pages {
        assert!(!sessions(&read(page)).is_empty(), "{}", page.display());
        tells_the_truth(page);
    }
}

/// Runs a script of the project with the program that is tested; it makes its world below a directory that this variable names,
/// and leaves nothing there.
#[track_caller]
fn told_by(script: &str, variable: &str) -> String {
    let world = World::new();
    let (script, below) = (
        repository().join("scripts").join(script),
        world.dir("below"),
    );
    let target = binary();
    let target = target
        .parent()
        .and_then(Path::parent)
        .expect("target/debug/escrow");
    let line = format!(
        "CARGO_TARGET_DIR='{}' {variable}='{}' '{}'",
        target.display(),
        below.display(),
        script.display()
    );
    let output = shell(&world, &line);
    assert_eq!(names(below), [""; 0], "it leaves nothing behind: {output}");
    output
}

#[test]
fn the_demo_runs_to_its_end() {
    let output = told_by("demo.sh", "TMPDIR");
    assert!(output.contains("That is the story so far."), "{output}");
    assert!(!output.contains("error: another"), "{output}");
}

/// Every hint that the day prints is typed, and none leads nowhere.
// rule C20, C15
#[test]
fn the_day_runs_to_its_end() {
    as_user_too();
    let output = told_by("day.sh", "DAY_WORLD");
    let end = "and every hint that was printed";
    assert!(output.contains(end), "{output}");
}

/// Compares a generated part of a document, or writes it.
fn generated(path: &Path, current: &str) {
    if std::env::var_os("ESCROW_BLESS").is_some() {
        fs::write(path, current).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    assert!(
        read(path) == current,
        "{} is out of date: `make docs` writes it again",
        path.display()
    );
}

#[test]
fn reference_is_current() {
    let (_world, cli) = world();
    let reference = cli.ok("reference");
    assert!(reference.contains("## escrow plan create"), "{reference}");
    generated(&repository().join("docs/cli-reference.md"), &reference);
}

/// Compares the part of a document between two markers, or writes it.
fn generated_part(path: &Path, name: &str, table: &str) {
    let text = read(path);
    let [begin, end] = ["begin", "end"].map(|edge| format!("<!-- {name}:{edge} -->"));
    let begin = format!("{begin}\n");
    let (before, rest) = text.split_once(&begin).expect("the marker is there");
    let (_, after) = rest.split_once(&end).expect("the marker is there");
    generated(path, &format!("{before}{begin}{table}{end}{after}"));
}

// rule P5
#[test]
fn reference_of_states_is_current() {
    let path = repository().join("docs/architecture.md");
    generated_part(&path, "states", &escrow::model::SandboxState::table());
}

// rule P8
#[test]
fn reference_of_the_configuration_is_current() {
    let path = repository().join("docs/configuration.md");
    generated_part(
        &path,
        "types",
        &escrow::model::ResourceTypes::default().table(),
    );
    generated_part(&path, "trust", &escrow::config::table());
    let schema = escrow::config::schema(&escrow::strategy::Registry::builtin());
    let schema = serde_json::to_string_pretty(&schema).expect("a schema is JSON");
    let path = repository().join("docs/spec/escrow.schema.json");
    generated(&path, &format!("{schema}\n"));
}

#[test]
fn every_command_has_help_a_page_and_completions() {
    let (_world, cli) = world();
    let reference = cli.ok("reference");
    let commands: Vec<&str> = reference
        .lines()
        .filter_map(|line| line.strip_prefix("## escrow"))
        .collect();
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        let line = words(command);
        let help = cli.ok([line.clone(), words("--help")].concat());
        assert!(help.contains("Usage: escrow"), "{command}: {help}");
        let page = cli.ok([words("man"), line].concat());
        assert!(page.contains(".TH"), "{command}: {page}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(cli.ok(["completions", shell]).contains("escrow"), "{shell}");
    }
    cli.plan("try", "./app", "filesystem_copy");
    cli.ok("checkpoint create try -m before-lunch");
    // As a shell asks: what is typed so far, and the word that is completed.
    let ask = r#"set -e; PATH=$(dirname "$1"):$PATH; source <("$1" completions bash)
        one() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9; COMPREPLY=()
            _clap_complete_escrow escrow "${@: -1}" x; echo "${COMPREPLY[*]}"; }
        one escrow commit t; one escrow restore before; one escrow read try ap
        one escrow run --strategy filesystem_; one escrow pla"#;
    let told = cli.behind(&["bash", "-c", ask, "bash"], "").output();
    let told = told.expect("there is a bash");
    assert_eq!(
        String::from_utf8_lossy(&told.stdout),
        "try\nbefore-lunch\napp\nfilesystem_copy\nplan\n",
        "{}",
        String::from_utf8_lossy(&told.stderr)
    );
    let script = cli.ok(["completions", "bash"]);
    let check = Command::new("bash")
        .args(["-n", "-c", &script])
        .status()
        .expect("there is a bash");
    assert!(check.success());
}

/// `make install` puts the program, every manual page and the completions where a package has them.
#[test]
fn make_install_has_pages_and_completions() {
    let (world, _cli) = world();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (binary, to) = (binary(), world.dir("dest"));
    let arg = |name: &str, path: &Path| format!("{name}={}", path.display());
    let mut make = Command::new("make");
    make.arg("-C").arg(top).args(["install", "PREFIX=/usr"]);
    output_of(make.args([arg("BINARY", &binary), arg("DESTDIR", &to)]));
    for name in [
        "bin/escrow",
        "share/man/man1/escrow.1",
        "share/man/man1/escrow-plan-create.1",
        "share/bash-completion/completions/escrow",
        "share/zsh/site-functions/_escrow",
        "share/fish/vendor_completions.d/escrow.fish",
    ] {
        let size = fs::metadata(to.join("usr").join(name)).map(|meta| meta.len());
        assert!(size.is_ok_and(|size| size > 100), "{name}");
    }
}
