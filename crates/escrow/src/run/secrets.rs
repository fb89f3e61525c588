//! What a command does not get to see unless it is shown: files and variables that hold credentials, by their usual names.
//!
//! The lists go by name, so they cannot know every tool. What they name is hidden from every command; `run.show`,
//! `run.env.pass` and the presets of agents take single ones back.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::fs::{Dir, state_dir};
use crate::model::text::Location;

/// Files and directories in the home directory that hold credentials.
const IN_HOME: &[&str] = &[
    // Keys and passwords.
    ".ssh",
    ".gnupg",
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".config/op",
    ".config/1Password",
    ".config/Bitwarden",
    ".config/Bitwarden CLI",
    ".config/keepassxc",
    ".config/sops",
    ".vault-token",
    ".pgpass",
    ".my.cnf",
    ".mylogin.cnf",
    // Clouds, clusters and forges.
    ".aws",
    ".azure",
    ".boto",
    ".s3cfg",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".config/glab-cli",
    ".config/doctl",
    ".config/hcloud",
    ".config/heroku",
    ".config/netlify",
    ".config/rclone",
    ".config/containers/auth.json",
    ".config/github-copilot",
    ".docker",
    ".fly",
    ".kube",
    ".oci",
    ".terraform.d",
    ".terraformrc",
    // Registries of packages.
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".composer/auth.json",
    ".config/composer/auth.json",
    ".m2/settings-security.xml",
    ".nuget/NuGet/NuGet.Config",
    ".cache/huggingface/token",
    ".huggingface",
    // Browsers and mail.
    ".mozilla",
    ".thunderbird",
    ".config/BraveSoftware",
    ".config/chromium",
    ".config/google-chrome",
    ".config/google-chrome-beta",
    ".config/microsoft-edge",
    ".config/opera",
    ".config/vivaldi",
    ".var/app",
    "snap/firefox",
    "snap/chromium",
    // Agents.
    ".claude.json",
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".gemini/oauth_creds.json",
    ".gemini/google_accounts.json",
    ".gemini/.env",
    ".aider.conf.yml",
    ".aider",
    ".local/share/opencode/auth.json",
];

/// What of the machine holds credentials; most of it matters to root, who could read it.
const OF_THE_MACHINE: &[&str] = &[
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/krb5.keytab",
    "/etc/wireguard",
    "/etc/NetworkManager/system-connections",
    "/var/spool/cron",
    // Sockets of container engines outside of /run: their users are root.
    "/var/lib/incus/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
];

/// Where home directories of other users lie.
pub(crate) const HOMES: [&str; 2] = ["/home", "/root"];

/// An agent whose own credentials stay usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// Aider, which uses the keys of several services.
    Aider,
    /// The Gemini CLI.
    Gemini,
}

impl Agent {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 4] = [
        ("claude", Self::Claude),
        ("codex", Self::Codex),
        ("aider", Self::Aider),
        ("gemini", Self::Gemini),
    ];

    /// The agent that a command starts, by the name of its program.
    pub(crate) fn of_program(program: &Path) -> Option<Self> {
        let name = program.file_name()?;
        let known = Self::ALL.iter().find(|(known, _)| name == *known);
        known.map(|(_, agent)| *agent)
    }

    /// Words behind the name of its program that switch its own sandbox off, unless `words` already say what that is to be:
    /// a command is confined anyway, and cannot make another sandbox.
    pub(crate) fn without_own_sandbox(self, words: &[OsString]) -> &'static [&'static str] {
        let says = |word: &OsString| {
            let word = word.to_string_lossy();
            word == "-s" || word == "--full-auto" || word == "--yolo" || word.contains("sandbox")
        };
        match self {
            Self::Codex if !words.iter().any(says) => {
                &["-c", "sandbox_mode=\"danger-full-access\""]
            }
            _ => &[],
        }
    }

    /// What of [`IN_HOME`] it may see.
    pub(crate) fn paths(self) -> &'static [&'static str] {
        match self {
            Self::Claude => &[".claude.json", ".claude/.credentials.json"],
            Self::Codex => &[".codex/auth.json"],
            Self::Aider => &[".aider.conf.yml", ".aider"],
            Self::Gemini => &[
                ".gemini/oauth_creds.json",
                ".gemini/google_accounts.json",
                ".gemini/.env",
            ],
        }
    }

    /// Patterns of the variables that it may see, whatever they look like.
    pub(crate) fn variables(self) -> &'static [&'static str] {
        match self {
            Self::Claude => &["ANTHROPIC_*", "CLAUDE_*"],
            Self::Codex => &["OPENAI_*", "CODEX_*"],
            Self::Aider => &[
                "AIDER_*",
                "ANTHROPIC_API_KEY",
                "DEEPSEEK_API_KEY",
                "GEMINI_API_KEY",
                "GROQ_API_KEY",
                "MISTRAL_API_KEY",
                "OPENAI_*",
                "OPENROUTER_API_KEY",
                "XAI_API_KEY",
            ],
            Self::Gemini => &["GEMINI_*", "GOOGLE_API_KEY", "GOOGLE_GENAI_*"],
        }
    }
}

/// Whether anything is at a path.
pub(crate) fn is_there(path: &Path) -> bool {
    access(path, Access::EXISTS).is_ok()
}

/// What of all these is there: in home directories, and of the machine what this user could read.
pub(crate) fn present(homes: &[PathBuf]) -> Vec<Location> {
    let mut found: Vec<Location> = homes.iter().flat_map(|home| in_home(home)).collect();
    let machine = OF_THE_MACHINE.iter().map(Path::new);
    let readable = machine.filter(|path| access(*path, Access::READ_OK).is_ok());
    found.extend(readable.map(Location::from));
    found
}

/// The Unix sockets of this machine that have a name, but for those in directories of which every namespace has its own.
pub(crate) fn sockets() -> Vec<Location> {
    let all = super::limits::text(Path::new("/proc/net/unix"));
    let paths = all
        .lines()
        .filter_map(|line| line.find(" /").map(|at| &line[at + 1..]));
    // A name behind a descriptor means something to the process that chose it only.
    let named = paths.filter(|path| !path.starts_with("/proc/"));
    let mut found: Vec<PathBuf> = named
        .filter_map(|path| state_dir::canonical_any(Path::new(path)).ok())
        .filter(|path| is_there(path))
        .collect();
    let own = ["/dev", "/run", "/tmp"];
    found.retain(|path| !own.iter().any(|own| path.starts_with(own)));
    found.into_iter().map(Location::from).collect()
}

fn in_home(home: &Path) -> Vec<Location> {
    // Of a directory that is not there nothing is, and of one that cannot be listed, such as a link, anything may be.
    let list = |dir: &str| -> Option<HashSet<Box<[u8]>>> {
        match Dir::open(&home.join(dir)).and_then(|dir| dir.names()) {
            Ok(names) => Some(names.into_iter().collect()),
            Err(error) => error.is_absent().then(HashSet::new),
        }
    };
    // Most of them lie in these two: one listing of each costs less than asking for every name.
    let (own, config) = (list(""), list(".config"));
    let has = |names: &Option<HashSet<Box<[u8]>>>, path: &str| {
        let first = path.split('/').next().unwrap_or_default();
        names
            .as_ref()
            .is_none_or(|names| names.contains(first.as_bytes()))
    };
    let there = IN_HOME.iter().filter(|path| {
        let below = path.strip_prefix(".config/");
        has(&own, path) && below.is_none_or(|path| has(&config, path))
    });
    // A link is covered where it leads: there, nothing that it was is left to be read.
    let real = there.filter_map(|path| state_dir::canonical_any(&home.join(path)).ok());
    real.map(Location::from).collect()
}

/// Words that names of secrets are made of.
const WORDS: &[&str] = &[
    "ACCESSKEY",
    "APIKEY",
    "AUTH",
    "CREDENTIAL",
    "CREDENTIALS",
    "CREDS",
    "JWT",
    "PASS",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PAT",
    "PGPASSFILE",
    "PGPASSWORD",
    "PRIVATEKEY",
    "PWD",
    "SECRET",
    "SECRETS",
    "TOKEN",
    "TOKENS",
];

/// Pairs of words that do.
const PAIRS: &[(&str, &str)] = &[
    ("ACCESS", "KEY"),
    ("API", "KEY"),
    ("AUTH", "KEY"),
    ("DEPLOY", "KEY"),
    ("ENCRYPTION", "KEY"),
    ("MASTER", "KEY"),
    ("PRIVATE", "KEY"),
    ("SECRET", "KEY"),
    ("SIGNING", "KEY"),
    ("SSH", "KEY"),
    ("CONNECTION", "STRING"),
];

/// Names that look like secrets and are none.
const HARMLESS: [&str; 3] = ["PWD", "OLDPWD", "GIT_ASKPASS"];

/// How values of well-known tokens begin.
const TOKENS: &[&str] = &[
    "-----BEGIN ",
    "AKIA",
    "ASIA",
    "eyJ",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "hf_",
    "npm_",
    "pypi-",
    "sk-",
    "sk_live_",
    "xoxb-",
    "xoxp-",
];

/// Whether a variable looks like a secret, by its name or by its value: a known token, or a URL with a password in it.
pub(crate) fn is_secret(name: &[u8], value: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name).to_uppercase();
    if HARMLESS.contains(&name.as_str()) {
        return false;
    }
    let words: Vec<&str> = name.split(|one: char| !one.is_alphanumeric()).collect();
    let pair = |two: &[&str]| PAIRS.contains(&(two[0], two[1]));
    if words.iter().any(|word| WORDS.contains(word)) || words.windows(2).any(pair) {
        return true;
    }
    let value = String::from_utf8_lossy(value);
    TOKENS
        .iter()
        .any(|token| value.starts_with(token) && value.len() >= token.len() + 12)
        || has_password(&value)
}

/// Whether a text has a URL with a password: `scheme://user:password@host`.
fn has_password(value: &str) -> bool {
    value.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', '?', '#', ' ']).next().unwrap_or_default();
        let user = authority.rsplit_once('@').map(|(user, _)| user);
        user.and_then(|user| user.split_once(':'))
            .is_some_and(|(_, password)| !password.is_empty())
    })
}

/// Whether a name matches a pattern, in which `*` stands for anything at its end.
pub(crate) fn matches(pattern: &str, name: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start.as_bytes()),
        None => name == pattern.as_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_told_by_name_and_by_value() {
        let secret = "GITHUB_TOKEN AWS_SECRET_ACCESS_KEY NPM_TOKEN DB_PASSWORD pgpassword API_KEY \
            STRIPE_API_KEY MYSQL_PWD GH_PAT AZURE_CLIENT_SECRET GOOGLE_APPLICATION_CREDENTIALS ssh-key KEYSTORE_PASS \
            AUTH NPM_CONFIG__AUTH AZURE_STORAGE_CONNECTION_STRING";
        for name in secret.split_whitespace() {
            assert!(is_secret(name.as_bytes(), b"x"), "{name}");
        }
        let harmless = "PATH HOME PWD OLDPWD KEYBOARD MONKEY AUTHOR GIT_AUTHOR_NAME TERM LANG PATTERN COMPASS \
            KEY_REPEAT XDG_SESSION_ID PASSENGER_APP_ENV TOKENIZERS_PARALLELISM";
        for name in harmless.split_whitespace() {
            assert!(!is_secret(name.as_bytes(), b"x"), "{name}");
        }
        let token = format!("ghp_{}", "x".repeat(36));
        let values = [
            (token.as_str(), true),
            ("postgres://ann:pw@db/x", true),
            ("x --url=https://u:p@h/", true),
            ("postgres://ann@db/x", false),
            ("https://example.org:8080/a@b", false),
            ("sk-1", false),
            ("a:b@c", false),
        ];
        for (value, expected) in values {
            assert_eq!(is_secret(b"X", value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn patterns_end_in_a_star_or_are_names() {
        assert!(matches("A_*", b"A_B") && matches("A_*", b"A_") && matches("*", b"X"));
        assert!(!matches("A_*", b"AB") && !matches("A", b"AB") && matches("A", b"A"));
    }
}
