//! Which of the caller's variables a command gets: those with usual names that do not look like secrets, those that
//! `run.env.pass` names, and those of the agent that it starts. What else there is is withheld and named.
//!
//! `docs/configuration.md` has the same lists, which a test compares.

use std::ffi::OsString;

use super::Manager;
use crate::agents::AgentPreset;
use crate::agents::credentials::read_real;
use crate::run::looks;

/// An environment.
pub(super) type Variables = Vec<(OsString, OsString)>;

/// Names that every command gets, unless they look like secrets: what they are for, and they; `*` at the end stands for anything.
const USUAL: [(&str, &str); 13] = [
    (
        "the user and the terminal",
        "_ CLICOLOR* COLORTERM COLUMNS FORCE_COLOR HOME HOSTNAME LANG LANGUAGE LC_* LINES LOGNAME LS_COLORS MAIL NO_COLOR \
         OLDPWD PATH PWD SHELL SHLVL TERM TERM_* TERMINFO* TMPDIR TZ USER XDG_*",
    ),
    (
        "editors and pagers",
        "BAT_* EDITOR FZF_* LESS LESSCHARSET MANPAGER MANPATH MORE PAGER VISUAL",
    ),
    (
        "proxies and certificates",
        "ALL_PROXY AWS_CA_BUNDLE CURL_CA_BUNDLE FTP_PROXY GIT_SSL_CAINFO GRPC_DEFAULT_SSL_ROOTS_FILE_PATH HTTPLIB2_CA_CERTS HTTPS_PROXY \
         HTTP_PROXY NO_PROXY REQUESTS_CA_BUNDLE SSL_CERT_DIR SSL_CERT_FILE \
         all_proxy ftp_proxy http_proxy https_proxy no_proxy",
    ),
    (
        "continuous integration",
        "BUILDKITE CI CIRCLECI CI_* GITHUB_* GITLAB_CI JENKINS_URL RUNNER_* TEAMCITY_VERSION TF_BUILD TRAVIS",
    ),
    (
        "compilers and builds",
        "AR AS CC CCACHE_* CFLAGS CMAKE_* CPATH CPP CPPFLAGS CXX CXXFLAGS C_INCLUDE_PATH DEBUG DESTDIR LD LDFLAGS \
         LD_LIBRARY_PATH LIBRARY_PATH MAKE* MESON_* MFLAGS NINJA_STATUS NM OMP_NUM_THREADS PKG_CONFIG* PREFIX RANLIB SCCACHE_* \
         SOURCE_DATE_EPOCH STRIP V VERBOSE",
    ),
    (
        "git",
        "GIT_AUTHOR_* GIT_COMMITTER_* GIT_CONFIG_GLOBAL GIT_CONFIG_NOSYSTEM GIT_CONFIG_SYSTEM GIT_EDITOR GIT_OPTIONAL_LOCKS \
         GIT_PAGER GIT_TERMINAL_PROMPT GIT_TRACE*",
    ),
    ("Rust", "CARGO CARGO_* NEXTEST NEXTEST_* RUST*"),
    (
        "JavaScript",
        "BUN_* COREPACK_* DENO_* FNM_* NODE NODE_* NPM_* NVM_* PNPM_HOME VOLTA_HOME YARN_* npm_*",
    ),
    (
        "Python",
        "CONDA_* PIPX_* PIP_* POETRY_* PYENV_* PYTEST_* PYTHON* PY_COLORS TOX_* UV_* VIRTUAL_ENV*",
    ),
    (
        "Go",
        "CGO_* GO111MODULE GOAMD64 GOARCH GOARM GOBIN GOCACHE GODEBUG GOEXPERIMENT GOFLAGS GOGC GOMAXPROCS GOMEMLIMIT \
         GOMODCACHE GONOPROXY GONOSUMDB GOOS GOPATH GOPRIVATE GOPROXY GOROOT GOSUMDB GOTMPDIR GOTOOLCHAIN GOTRACEBACK GOWORK",
    ),
    (
        "Java and its like",
        "ANDROID_* GRADLE_* JAVA_* JDK_* M2_HOME MAVEN_* SBT_OPTS _JAVA_OPTIONS",
    ),
    (
        "other languages and packages",
        "BUNDLE_GEMFILE BUNDLE_PATH COMPOSER_HOME DEBIAN_FRONTEND DOTNET_* GEM_* GHC* HOMEBREW_* MIX_* NIX_* NUGET_PACKAGES OCAML* OPAM* PERL* \
         PHP_* RBENV_* RUBY* STACK_ROOT",
    ),
    (
        "databases and Escrow",
        "ESCROW_* PGCLIENTENCODING PGDATABASE PGHOST PGOPTIONS PGPORT PGSSLMODE PGTZ PGUSER",
    ),
];

/// What belongs to the caller's session, or leads to helpers outside that act for the user. It means nothing inside, so that
/// it is withheld needs no word.
const SESSION: &str = "COLORFGBG DBUS_SESSION_BUS_ADDRESS DEBUGINFOD_URLS DESKTOP_SESSION DISPLAY ESCROW_HOME GDMSESSION GNOME_* \
    GPG_AGENT_INFO GPG_TTY GTK_* INVOCATION_ID JOURNAL_STREAM KDE_* LESSCLOSE LESSOPEN MANAGERPID MEMORY_PRESSURE_* QT_* \
    SESSION_MANAGER SSH_AGENT_PID SSH_AUTH_SOCK SSH_CLIENT SSH_CONNECTION SSH_TTY STY SYSTEMD_EXEC_PID TMUX TMUX_PANE \
    WAYLAND_DISPLAY WINDOWID XAUTHORITY XMODIFIERS";

/// The caller's variables that a command gets, and the names of those that it does not get.
pub(super) fn passed(
    callers: &[(OsString, OsString)],
    pass: &[String],
    agent: &[String],
) -> (Variables, Vec<String>) {
    let (mut kept, mut withheld) = (Vec::new(), Vec::new());
    for (name, value) in callers {
        let (key, text) = (name.as_encoded_bytes(), value.as_encoded_bytes());
        let matches = |pattern: &str| looks::matches(pattern, key);
        if SESSION.split_whitespace().any(matches) {
            continue;
        }
        // All at once says nothing of a single one.
        let (all, named): (Vec<_>, Vec<_>) = pass.iter().partition(|pattern| *pattern == "*");
        let declared =
            named.iter().any(|pattern| matches(pattern)) || agent.iter().any(|one| matches(one));
        let mut usual = USUAL.iter().flat_map(|(_, names)| names.split_whitespace());
        let usual = !all.is_empty() || usual.any(matches);
        match declared || (usual && !looks::is_secret(key, text)) {
            true => kept.push((name.clone(), value.clone())),
            false => withheld.push(name.to_string_lossy().into_owned()),
        }
    }
    (kept, withheld)
}

/// So many names are said of variables that a command does not get; of more, their number.
const SAID: usize = 3;

/// What to say of variables that a command does not get.
pub(super) fn not_passed(names: &[String]) -> String {
    match names.len() <= SAID {
        true => format!(
            "not passed: {} (pass with `-e NAME` or `run.env.pass`)",
            names.join(", ")
        ),
        false => format!(
            "not passed: {} variables (`-v` names them; pass with `-e NAME` or `run.env.pass`)",
            names.len()
        ),
    }
}

/// The largest file of an agent's configuration that is searched for names of variables.
const MOST: u64 = 1 << 20;

impl Manager {
    /// Patterns of the variables that an agent gets: those of its preset, and those that its configuration names.
    pub(super) fn agent_variables(&self, preset: &std::sync::Arc<AgentPreset>) -> Vec<String> {
        let mut all = preset.variables.clone();
        let Some(paths) = self.agent_paths(preset) else {
            return all;
        };
        for one in &preset.variables_in {
            let found = paths.entry(&one.file).map(|entry| entry.at);
            // What cannot be read names nothing.
            let read = found.and_then(|at| read_real(&at, MOST).ok().flatten());
            if let Some((bytes, _)) = read {
                all.extend(named_in(&String::from_utf8_lossy(&bytes), &one.word));
            }
        }
        all
    }
}

/// The names of variables that stand behind a word in a text, as in `env_key = "NAME"`.
fn named_in(text: &str, word: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = |(at, _): (usize, &str)| {
        let rest = &text[at + word.len()..];
        let rest = rest.trim_start_matches([' ', '\t', '=', ':', '"', '\'']);
        let name: String = rest.chars().take_while(|c| is_name(*c)).collect();
        (!name.is_empty()).then_some(name)
    };
    text.match_indices(word).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(callers: &[(&str, &str)], pass: &[&str]) -> (Vec<String>, Vec<String>) {
        let callers = callers
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        let pass: Vec<String> = pass.iter().map(|one| (*one).to_owned()).collect();
        let (kept, withheld) = passed(&callers.collect::<Vec<_>>(), &pass, &[]);
        let names = kept
            .iter()
            .map(|(name, _)| name.to_string_lossy().into_owned());
        (names.collect(), withheld)
    }

    #[test]
    fn usual_names_are_passed_and_secrets_win_over_them() {
        let (kept, withheld) = of(
            &[
                ("PATH", "/bin"),
                ("LC_TIME", "C"),
                ("CARGO_REGISTRY_TOKEN", "x"),
                ("CARGO_TERM_COLOR", "never"),
                ("PIP_INDEX_URL", "https://u:p@pypi.example/"),
                ("npm_config__auth", "x"),
                ("GOOGLE_CLOUD_PROJECT", "x"),
                ("FOO", "1"),
                ("SSH_AUTH_SOCK", "/run/agent"),
            ],
            &[],
        );
        assert_eq!(kept, ["PATH", "LC_TIME", "CARGO_TERM_COLOR"]);
        let expected =
            "CARGO_REGISTRY_TOKEN PIP_INDEX_URL npm_config__auth GOOGLE_CLOUD_PROJECT FOO";
        assert_eq!(withheld, expected.split(' ').collect::<Vec<_>>());
    }

    #[test]
    fn what_is_named_is_passed_whatever_it_holds_and_a_star_alone_passes_no_secret() {
        let callers = [
            ("FOO", "1"),
            ("MY_TOKEN", "x"),
            ("SSH_AUTH_SOCK", "/run/agent"),
        ];
        let named = |pass: &[&str]| of(&callers, pass).0.join(" ");
        assert_eq!(named(&["MY_*"]), "MY_TOKEN");
        assert_eq!(named(&["*"]), "FOO");
        assert_eq!(named(&["*", "MY_TOKEN"]), "FOO MY_TOKEN");
    }

    #[test]
    fn the_documents_have_the_same_lists() {
        let text = include_str!("../../../../docs/configuration.md");
        let quoted = |names: &str| {
            let names = names.split_whitespace().map(|name| format!("`{name}`"));
            names.collect::<Vec<_>>().join(" ")
        };
        for (what, names) in USUAL {
            let row = format!("| {what} | {} |", quoted(names));
            assert!(text.contains(&row), "docs/configuration.md lacks: {row}");
        }
        assert!(
            text.contains(&quoted(SESSION)),
            "docs/configuration.md lacks: {}",
            quoted(SESSION)
        );
    }

    #[test]
    fn few_are_named_and_many_are_counted() {
        let names: Vec<String> = (0..20).map(|number| format!("V{number}")).collect();
        let few = not_passed(&names[..3]);
        assert!(few.starts_with("not passed: V0, V1, V2 (pass"), "{few}");
        let many = not_passed(&names);
        assert!(many.starts_with("not passed: 20 variables (`-v`"), "{many}");
    }

    #[test]
    fn the_configuration_of_an_agent_names_variables() {
        let toml = "[model_providers.x]\nenv_key = \"MY_KEY\"\nenv_key=\"B2\"\n# env_key\n";
        assert_eq!(named_in(toml, "env_key").join(" "), "MY_KEY B2");
        let json = r#"{"apiKey": "{env:OTHER_KEY}"}"#;
        assert_eq!(named_in(json, "{env:").join(" "), "OTHER_KEY");
    }
}
