//! What commands see of the entries of a home directory that begin with a dot, of `~/.config`, `~/.local/share` and
//! `~/.local/state`: what tools need to work, by group. Every other one is hidden, for what is not known may hold a credential.
//!
//! `docs/configuration.md` has the same lists, which a test compares. `*` at the end stands for anything.

use super::looks;

/// Groups, each with what it is for and its names.
type Groups = &'static [(&'static str, &'static str)];

/// A directory whose entries are shown by a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listed {
    /// The home directory: what begins with a dot.
    Home,
    /// `~/.config`.
    Config,
    /// `~/.local/share`.
    Data,
    /// `~/.local/state`.
    State,
}

const HOME: Groups = &[
    (
        "start files of shells",
        ".bash_aliases .bash_completion .bash_completion.d .bash_functions .bash_login .bash_logout .bash_profile .bash_prompt \
         .bashrc* .dircolors .dir_colors .hushlogin .inputrc .kshrc .lesskey .login .logout .mkshrc .motd_shown .p10k.zsh \
         .profile .selected_editor .shrc .sudo_as_admin_successful .tcshrc .cshrc .terminfo .xonshrc .zcompdump* .zlogin \
         .zlogout .zprofile .zsh .zsh_aliases .zshenv .zshrc*",
    ),
    (
        "plugins of shells",
        ".antidote .antigen .bash_it .fzf .fzf.bash .fzf.zsh .oh-my-bash .oh-my-zsh .starship .zgen .zinit .zplug .zprezto",
    ),
    (
        "toolchains",
        ".arduino15 .asdf .asdfrc .bun .bundle .cabal .cargo .composer .conda .conan2 .cpan .cpanm \
         .deno .dotnet .elan .emsdk .espressif .fnm .foundry .gem .ghc .ghcup .goenv .gradle .gvm .ivy2 .jabba .jbang \
         .jenv .julia .juliaup .kotlinc .krew .linuxbrew .local .lua .luarocks .m2 .mix .modular .moon .n .nimble .nix-channels \
         .nix-defexpr .nix-profile .nodebrew .nodenv .npm-global .npm-packages .nuget .nvm .opam .perl5 .perlbrew .phpenv .pixi \
         .platformio .plenv .pnpm .poetry .proto .pub-cache .pyenv .python-eggs .rbenv .rustup .rvm .rye .sbt .sdkman \
         .stack .swiftly .swiftpm .tfenv .tool-versions .uv .vcpkg .virtualenvs .volta .wasmer .wasmtime .yarn .zvm",
    ),
    (
        "caches",
        ".bazel .cache .ccache .eslintcache .hex .matplotlib .mypy_cache .node-gyp .npm .parcel-cache \
         .pnpm-store .pytest_cache .ruff_cache .theano .wget-hsts .yarn-cache",
    ),
    (
        "editors and terminals",
        ".clang-format .clang-tidy .clangd .ctags .ctags.d .dir-locals.el .editorconfig .emacs .emacs.d .doom.d .exrc .gvimrc .gdbinit \
         .gdbinit.d .ideavimrc .lldbinit .nano .nanorc .prettierrc* .screenrc .spacemacs .tigrc .tmux .tmux.conf* .vim \
         .vimrc* .wezterm.lua .alacritty.toml",
    ),
    (
        "languages",
        ".Rprofile .black .cmake .eslintrc* .flake8 .guile .ipython .irbrc .iex.exs .ghci .haskeline .jshintrc .node-version \
         .nvmrc .perltidyrc .pryrc .psqlrc .pylintrc .python-version .pythonrc .pythonrc.py .rspec \
         .rubocop.yml .ruby-version .rustfmt.toml .sqliterc .java-version .justfile .xmake",
    ),
    (
        "version control",
        ".gitconfig* .gitignore* .gitattributes* .git-completion.* .git-prompt.sh .git-template* .hgignore* .jjconfig.toml .ripgreprc \
         .fdignore .rgignore .ignore .agignore .ackrc",
    ),
    ("coding agents", ".claude .codex .gemini"),
    ("fonts", ".fonts .fonts.conf .icons .themes"),
];

const CONFIG: Groups = &[
    (
        "shells",
        "bash bat btop eza fastfetch fish fsh htop lsd nushell oh-my-posh powershell procps shell starship starship.toml \
         thefuck xonsh zellij zsh zsh-abbr",
    ),
    (
        "editors and terminals",
        "alacritty clangd dircolors doom editorconfig emacs foot ghostty helix kak kitty lf lvim micro nano neofetch nnn nvim ranger \
         ripgrep tig tmux topgrade vim wezterm yazi",
    ),
    (
        "toolchains and languages",
        "black cmake cpanm deno direnv ghc go golangci-lint husky jupytext lazygit mimeapps.list matplotlib mise mypy \
         nix nixpkgs nodemon pycodestyle pylint ptpython pudb rtx ruff rustfmt sheldon sqlfluff stylua \
         tealdeer user-dirs.dirs user-dirs.locale yamllint yapf flake8 asdf rg delta",
    ),
    ("version control", "git jj"),
    ("coding agents", "goose opencode"),
    ("fonts", "fontconfig"),
];

const DATA: Groups = &[
    (
        "toolchains",
        "asdf cabal coursier deno direnv fnm gem ghcup go juliaup man mise mix nvim nvm opam opencode pdm pipx pnpm pnpm-store \
         pyenv rtx ruby rustup sdkman stack uv virtualenv virtualenvs volta zed-toolchains",
    ),
    (
        "shells and editors",
        "bash-completion doom emacs helix kak lvim nano oh-my-zsh sheldon site-lisp tmux vim zinit zsh-completions \
         tealdeer",
    ),
    ("coding agents", "goose"),
    (
        "fonts, icons and kinds of files",
        "applications fonts icons icc locale mime themes terminfo",
    ),
];

const STATE: Groups = &[
    (
        "toolchains",
        "fnm_multishells home-manager mise nix opam pnpm uv",
    ),
    ("editors", "helix nvim"),
    ("coding agents", "goose opencode"),
];

impl Listed {
    /// All of them, as one names them.
    #[cfg(test)]
    pub(crate) const ALL: [(Self, &'static str); 4] = [
        (Self::Home, "~"),
        (Self::Config, "~/.config"),
        (Self::Data, "~/.local/share"),
        (Self::State, "~/.local/state"),
    ];

    fn groups(self) -> Groups {
        match self {
            Self::Home => HOME,
            Self::Config => CONFIG,
            Self::Data => DATA,
            Self::State => STATE,
        }
    }

    /// Whether commands see an entry.
    pub(crate) fn shows(self, name: &[u8]) -> bool {
        // Where the entries of these are looked at one by one, the directories themselves are there.
        if self == Self::Home && (!name.starts_with(b".") || name == b".config") {
            return true;
        }
        let groups = self.groups().iter();
        let mut names = groups.flat_map(|(_, names)| names.split_whitespace());
        names.any(|pattern| looks::matches(pattern, name))
    }
}

/// Whether a file has a name as keys, stores of passwords and files of secrets have it, wherever it lies.
pub(crate) fn is_private(name: &[u8]) -> bool {
    const ENDS: &[&str] = &[
        ".jks",
        ".kdb",
        ".kdbx",
        ".key",
        ".keystore",
        ".ovpn",
        ".p12",
        ".pem",
        ".pfx",
        ".ppk",
        ".tfstate",
        ".tfvars",
        "_history",
        "_secret",
        "_token",
        "_secrets.json",
        "accesskeys.csv",
    ];
    const NAMES: &[&str] = &[
        ".dev.vars",
        ".envrc",
        ".git-credentials",
        ".htpasswd",
        ".netrc",
        ".npmrc",
        ".pgpass",
        ".pypirc",
        ".secrets",
        ".vault-token",
        ".vault_pass",
        ".yarnrc.yml",
        "_netrc",
        "auth.json",
        "credentials",
        "credentials.csv",
        "credentials.json",
        "credentials.yaml",
        "credentials.yml",
        "id_dsa",
        "id_ecdsa",
        "id_ecdsa_sk",
        "id_ed25519",
        "id_ed25519_sk",
        "id_rsa",
        "id_xmss",
        "key.json",
        "kubeconfig",
        "local.settings.json",
        "secret.json",
        "secrets.env",
        "secrets.json",
        "secrets.toml",
        "secrets.yaml",
        "secrets.yml",
        "token.json",
    ];
    const BEGINS: &[&str] = &[
        ".env.",
        ".vault_pass",
        "client_secret",
        "service-account",
        "service_account",
    ];
    const PUBLIC: &[&str] = &[
        ".dist",
        ".example",
        ".sample",
        ".template",
        ".defaults",
        ".pub",
        ".schema",
    ];
    let name = String::from_utf8_lossy(name).to_lowercase();
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    if ends(PUBLIC) {
        return false;
    }
    name == ".env"
        || NAMES.contains(&name.as_str())
        || ends(ENDS)
        || BEGINS.iter().any(|begin| name.starts_with(begin))
        || (name.starts_with("id_")
            && ["rsa", "dsa", "ecdsa", "ed25519"]
                .iter()
                .any(|kind| name.contains(kind)))
}

/// Whether programs look at an entry without being asked to, so that it says nothing that they did: histories and what belongs
/// to the session.
pub(crate) fn is_unasked(path: &[u8]) -> bool {
    const ENDS: [&[u8]; 5] = [b"history", b"hst", b"authority", b".viminfo", b".hsts"];
    let path = path.to_ascii_lowercase();
    ENDS.iter().any(|end| path.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_a_key_has_a_name_as_keys_have() {
        let private = "Passwords.kdbx id_rsa id_ed25519_work server.pem tls.key .env .env.production master.key secrets.yml \
            key.json service-account-prod.json terraform.tfstate .npmrc psql_history";
        for name in private.split_whitespace() {
            assert!(is_private(name.as_bytes()), "{name}");
        }
        let public = "id_rsa.pub .env.example notes.txt Keynote README.md id_mapping.csv environment .envoy history.md keys";
        for name in public.split_whitespace() {
            assert!(!is_private(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn the_documents_have_the_same_lists() {
        let text = include_str!("../../../../docs/configuration.md");
        for (listed, place) in Listed::ALL {
            for (what, names) in listed.groups() {
                let names = names.split_whitespace().map(|name| format!("`{name}`"));
                let row = format!(
                    "| `{place}` | {what} | {} |",
                    names.collect::<Vec<_>>().join(" ")
                );
                assert!(text.contains(&row), "docs/configuration.md lacks: {row}");
            }
        }
    }
}
