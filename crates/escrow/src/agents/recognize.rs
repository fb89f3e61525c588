//! Which agent a command starts: by the name of its program, also behind `env`, `nice`, `timeout`, `sh -c`, `npx`, `uvx`, and in a
//! script of the user.
//!
//! The words of the command line are the user's own. A script counts only where the caller can read it for this: one that lies in a
//! tree is not asked, since it could name an agent to be shown its credentials.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use super::{AgentPreset, Agents};

/// How deep words are looked for in words.
const DEEPEST: u32 = 4;

/// An agent that a command starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recognized {
    /// Its preset.
    pub(crate) preset: Arc<AgentPreset>,
    /// Which word of the command is its program, where that is a word of its own.
    pub(crate) word: Option<usize>,
}

/// Programs that start another one: their names, and their options that take a value.
const WRAPPERS: &[(&str, &str)] = &[
    ("env", "-u --unset -C --chdir -S --split-string"),
    ("nice", "-n --adjustment"),
    ("ionice", "-c -n --class --classdata"),
    ("chrt", ""),
    ("timeout", "-s --signal -k --kill-after"),
    ("nohup", ""),
    ("setsid", ""),
    ("stdbuf", "-i -o -e --input --output --error"),
    ("time", "-f -o --format --output"),
    ("command", ""),
    ("exec", "-a"),
    ("unbuffer", ""),
    ("caffeinate", ""),
    ("npx", "-p --package -c --call -w --workspace"),
    ("bunx", "-p --package"),
    (
        "uvx",
        "-p --python --from --with --index --index-url --extra-index-url",
    ),
];

/// Programs whose second word (or second and third) makes them start a package.
const RUNNERS: &[(&str, &str, &str)] = &[
    ("npm", "exec", "-p --package -c --call -w --workspace"),
    ("npm", "x", "-p --package -c --call -w --workspace"),
    ("pnpm", "dlx", "--package"),
    ("pnpm", "exec", ""),
    ("yarn", "dlx", "-p --package"),
    ("bun", "x", "-p --package"),
    ("pipx", "run", "--spec --python --pip-args"),
    (
        "uv",
        "run",
        "-p --python --with --index --project --directory",
    ),
];

const SHELLS: &str = "sh bash dash zsh ksh fish busybox";

/// Programs that run the file or module that they are given.
const INTERPRETERS: &str = "node bun deno python python3 pypy3";

impl Agents {
    /// The agent that a command starts. `script` gives the text of a script that may be asked, by the word that names it.
    pub(crate) fn recognize(
        &self,
        command: &[OsString],
        script: &dyn Fn(&OsStr) -> Option<String>,
    ) -> Option<Recognized> {
        let words: Vec<String> = command.iter().map(|word| lossy(word)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.search(&words, 0, script)
    }

    fn search(
        &self,
        words: &[&str],
        depth: u32,
        script: &dyn Fn(&OsStr) -> Option<String>,
    ) -> Option<Recognized> {
        let (first, rest) = words.split_first()?;
        let name = file_name(first);
        if depth > DEEPEST {
            return None;
        }
        if let Some(preset) = self.of_program(name) {
            let (preset, word) = (preset.clone(), Some(0));
            return Some(Recognized { preset, word });
        }
        let behind = |from: usize, found: Option<Recognized>| {
            found.map(|found| Recognized {
                word: found.word.map(|word| word + from),
                ..found
            })
        };
        if let Some((_, valued)) = WRAPPERS.iter().find(|(wrapper, _)| *wrapper == name) {
            let skipped = 1 + options(rest, valued, name);
            return self
                .package(words.get(skipped).copied().filter(|_| name.ends_with('x')))
                .or_else(|| {
                    behind(
                        skipped,
                        self.search(&words[skipped.min(words.len())..], depth + 1, script),
                    )
                });
        }
        let mut runners = RUNNERS.iter();
        if let Some((.., valued)) = runners.find(|(runner, verb, _)| {
            *runner == name && rest.first().is_some_and(|one| one == verb)
        }) {
            let skipped = 2 + options(&rest[1..], valued, name);
            return self.package(words.get(skipped).copied()).or_else(|| {
                behind(
                    skipped,
                    self.search(&words[skipped.min(words.len())..], depth + 1, script),
                )
            });
        }
        if name == "uv" && rest.starts_with(&["tool", "run"]) {
            let skipped = 3 + options(&rest[2..], "-p --python --from --with", name);
            return self.package(words.get(skipped).copied());
        }
        if is_one_of(SHELLS, name) {
            let at = rest.iter().position(|word| {
                word.starts_with('-') && !word.starts_with("--") && word.ends_with('c')
            });
            return match at {
                Some(at) => self.in_text(rest.get(at + 1)?, depth, script),
                None => self.in_text(&script(OsStr::new(rest.first()?))?, depth, script),
            };
        }
        if is_one_of(INTERPRETERS, name) {
            return match rest.first()? {
                &"-m" => self.of_program(rest.get(1)?).map(whole),
                file => self.of_file(file),
            };
        }
        self.in_text(&script(OsStr::new(first))?, depth, script)
    }

    /// The agent of a package, whatever version of it is meant.
    fn package(&self, spec: Option<&str>) -> Option<Recognized> {
        let spec = spec?;
        let scoped = spec.starts_with('@');
        let at = spec[usize::from(scoped)..].find(['@', '=', '<', '>', '[']);
        let name = at.map_or(spec, |at| &spec[..at + usize::from(scoped)]);
        let found = self.of_package(name).or_else(|| self.of_program(name));
        found.map(whole)
    }

    /// The agent that a file is, which an interpreter runs.
    fn of_file(&self, file: &str) -> Option<Recognized> {
        let stem = file_name(file);
        let stem = stem.rsplit_once('.').map_or(stem, |(stem, _)| stem);
        let inside = |preset: &&Arc<AgentPreset>| {
            let mut packages = preset.packages.iter();
            packages.any(|one| file.contains(&format!("/node_modules/{one}/")))
        };
        let found = self.of_program(stem).or_else(|| self.all().find(inside));
        found.map(whole)
    }

    /// The agent that a text for a shell starts.
    fn in_text(
        &self,
        text: &str,
        depth: u32,
        script: &dyn Fn(&OsStr) -> Option<String>,
    ) -> Option<Recognized> {
        let commands = text.split([';', '&', '|', '\n', '(', ')', '{', '}', '`']);
        let found = commands.filter_map(|command| {
            let command = command.trim().trim_start_matches("$ ");
            let words = command.split_whitespace();
            let words = words.map(|word| word.trim_matches(['"', '\'']));
            let mut words = words.skip_while(|word| {
                is_assignment(word) || is_one_of("then do else if while ! exec", word)
            });
            let words: Vec<&str> = words.by_ref().take(64).collect();
            match words.first()?.starts_with('#') {
                true => None,
                false => self.search(&words, depth + 1, script),
            }
        });
        let found = { found }.next();
        found.map(|found| Recognized {
            word: None,
            ..found
        })
    }
}

fn whole(preset: &Arc<AgentPreset>) -> Recognized {
    Recognized {
        preset: preset.clone(),
        word: None,
    }
}

fn lossy(word: &OsStr) -> String {
    word.to_string_lossy().into_owned()
}

fn file_name(word: &str) -> &str {
    let name = Path::new(word).file_name();
    name.and_then(OsStr::to_str).unwrap_or(word)
}

fn is_one_of(names: &str, name: &str) -> bool {
    names.split_whitespace().any(|one| one == name)
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|name| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        !name.is_empty() && name.chars().all(plain)
    })
}

/// How many words are options of a wrapper, with their values.
fn options(words: &[&str], valued: &str, wrapper: &str) -> usize {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        match *word {
            "--" => return at + 1,
            word if word.starts_with('-') => {
                at += 1 + usize::from(is_one_of(valued, word));
            }
            word if wrapper == "env" && is_assignment(word) => at += 1,
            // Its first own word is a time.
            _ if wrapper == "timeout" => return at + 1,
            _ => return at,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> String {
        let words: Vec<OsString> = line.split('|').map(Into::into).collect();
        let script = |word: &OsStr| match word.to_str() {
            Some("./agent.sh") => {
                Some("#!/bin/sh\n# claude\nset -e\nexec codex \"$@\"\n".to_owned())
            }
            Some("./plain.sh") => Some("#!/bin/sh\necho claude\n".to_owned()),
            _ => None,
        };
        match Agents::default().recognize(&words, &script) {
            Some(Recognized { preset, word }) => {
                let word = word.map_or("-".to_owned(), |word| word.to_string());
                format!("{} {word}", preset.name)
            }
            None => "none".to_owned(),
        }
    }

    #[test]
    fn an_agent_is_recognized_behind_what_starts_it() {
        for (line, expected) in [
            ("claude|-p|x", "claude 0"),
            ("/usr/local/bin/codex", "codex 0"),
            ("env|-u|A|B=1|claude", "claude 4"),
            ("env|-i|--|claude", "claude 3"),
            ("nice|-n|5|codex|exec", "codex 3"),
            ("timeout|-k|5|10m|gemini", "gemini 4"),
            ("timeout|10m|env|A=1|claude", "claude 4"),
            ("nohup|aider", "aider 1"),
            ("sh|-c|cd x && A=1 claude -p y", "claude -"),
            ("bash|-lc|exec timeout 5 codex", "codex -"),
            ("npx|-y|@anthropic-ai/claude-code@2.1|-p|x", "claude -"),
            ("npx|@openai/codex", "codex -"),
            ("npx|opencode-ai@latest", "opencode -"),
            ("npx|claude", "claude -"),
            ("uvx|--from|aider-chat|aider", "aider -"),
            ("uvx|aider-chat@0.86", "aider -"),
            ("uv|tool|run|--from|aider-chat|aider", "aider -"),
            ("pnpm|dlx|@google/gemini-cli", "gemini -"),
            ("bun|x|opencode-ai", "opencode -"),
            ("python3|-m|aider", "aider -"),
            (
                "node|/opt/node_modules/@google/gemini-cli/bundle/gemini.js",
                "gemini -",
            ),
            ("./agent.sh", "codex -"),
            ("sh|./agent.sh", "codex -"),
            ("./plain.sh", "none"),
            ("sh|-c|echo claude", "none"),
            ("sh|-c|# claude", "none"),
            ("vim|claude", "none"),
            ("cat|codex", "none"),
            ("env", "none"),
            ("timeout|5", "none"),
            ("npx", "none"),
            ("npx|prettier|claude", "none"),
        ] {
            assert_eq!(found(line), expected, "{line}");
        }
    }
}
