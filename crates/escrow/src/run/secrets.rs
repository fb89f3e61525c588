//! What a command does not get to see unless it is shown: files that hold credentials, by their usual names, and those entries of
//! the home directory that [no list](super::home_entries) knows.
//!
//! These are the lists; `search` finds what of them is there. `run.show` and the presets of agents take single places back.

use std::ffi::OsString;
use std::path::Path;

use super::home_entries::Listed;

/// Files and directories in a home directory that hold credentials. Those in directories that a list shows are hidden by this
/// list alone; the others also where the lists do not count.
pub(super) const IN_HOME: &[&str] = &[
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
    ".config/age",
    ".vault-token",
    ".pgpass",
    ".my.cnf",
    ".mylogin.cnf",
    ".foundry/keystores",
    ".dotnet/corefx/cryptography",
    ".local/share/uv/credentials",
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
    ".config/ngrok",
    ".config/rclone",
    ".config/stripe",
    ".config/containers/auth.json",
    ".config/github-copilot",
    ".config/nix/nix.conf",
    ".docker",
    ".fly",
    ".kube",
    ".oci",
    ".pulumi",
    ".terraform.d",
    ".terraformrc",
    ".platformio/appstate.json",
    // Registries of packages.
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pypirc",
    ".config/pip",
    ".pip",
    ".config/pypoetry",
    ".bundle/config",
    ".cabal/config",
    ".cabal/credentials",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".composer/auth.json",
    ".composer/config.json",
    ".config/composer/auth.json",
    ".conan2/credentials.json",
    ".gem/credentials",
    ".gradle/gradle.properties",
    ".gradle/daemon",
    ".gradle/develocity",
    ".gradle/enterprise",
    ".hex/hex.config",
    ".ivy2/.credentials",
    ".ivy2/credentials",
    ".julia/servers",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".nuget/NuGet/NuGet.Config",
    ".pub-cache/credentials.json",
    ".sbt/.credentials",
    ".sbt/credentials",
    ".sbt/sonatype_credential",
    ".cache/huggingface/token",
    ".cache/huggingface/stored_tokens",
    ".huggingface",
    // What was typed.
    ".bash_history",
    ".zsh_history",
    ".config/fish/fish_variables",
    ".config/nushell/history.txt",
    ".config/nushell/history.sqlite3",
    ".config/zsh/.zsh_history",
    ".ipython/profile_default/history.sqlite",
    ".julia/logs",
    ".local/state/nvim/shada",
    ".zsh/.zsh_history",
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
    ".cache/BraveSoftware",
    ".cache/chromium",
    ".cache/evolution",
    ".cache/google-chrome",
    ".cache/microsoft-edge",
    ".cache/mozilla",
    ".cache/thunderbird",
    ".cache/mutt",
    ".var/app",
    "snap/firefox",
    "snap/chromium",
    // Agents.
    ".claude.json",
    ".claude/.credentials.json",
    ".claude/history.jsonl",
    ".codex/auth.json",
    ".codex/history.jsonl",
    ".gemini/oauth_creds.json",
    ".gemini/google_accounts.json",
    ".gemini/mcp-oauth-tokens.json",
    ".gemini/.env",
    ".aider.conf.yml",
    ".aider",
    ".config/goose/secrets.yaml",
    ".local/share/opencode/auth.json",
    ".local/share/opencode/mcp-auth.json",
];

/// What of the machine holds credentials, by directory; most of it matters to root, who could read it. `*` stands for anything,
/// at the beginning or at the end of a name.
pub(super) const OF_THE_MACHINE: &[(&str, &str)] = &[
    (
        "/etc",
        "shadow shadow- gshadow gshadow- sudoers sudoers.d krb5.keytab wireguard letsencrypt kubernetes ipsec.secrets ipsec.d \
         swanctl openvpn ppp pptpd.conf xl2tpd rndc.key msmtprc fetchmailrc ssmtp smbcredentials cifs-credentials wpa_supplicant ldap.secret \
         pam_ldap.secret libnss-ldap.secret cryptsetup-keys.d luks-keys credstore credstore.encrypted dkimkeys vault.d \
         consul.d nomad.d cloudflared step-ca munge ntp.keys opasswd boto.cfg k0s acme.sh pgbackrest.conf restic borgmatic \
         rclone.conf *-secrets *.secrets *.secret *.keytab *.kdbx *.key *_secret *credentials",
    ),
    ("/etc/apt", "auth.conf auth.conf.d"),
    ("/etc/bind", "rndc.key *.key"),
    ("/etc/ceph", "*.keyring"),
    ("/etc/chrony", "chrony.keys"),
    ("/etc/davfs2", "secrets"),
    ("/etc/docker", "key.json certs.d"),
    ("/etc/dovecot", "private"),
    ("/etc/exim4", "passwd.client"),
    ("/etc/gitlab", "gitlab-secrets.json gitlab.rb"),
    ("/etc/gitlab-runner", "config.toml"),
    ("/etc/grafana", "grafana.ini"),
    ("/etc/iscsi", "iscsid.conf"),
    ("/etc/mysql", "debian.cnf"),
    ("/etc/NetworkManager", "system-connections"),
    ("/etc/nut", "upsd.users"),
    ("/etc/opendkim", "keys"),
    ("/etc/pki/tls", "private"),
    ("/etc/postfix", "sasl_passwd sasl_passwd.db sasl"),
    ("/etc/puppetlabs/puppet", "ssl"),
    ("/etc/pve", "priv"),
    ("/etc/rancher", "k3s rke2 node"),
    ("/etc/redis", "redis.conf users.acl"),
    ("/etc/salt", "pki"),
    ("/etc/samba", "smbpasswd credentials"),
    ("/etc/security", "opasswd"),
    ("/etc/ssh", "ssh_host_*_key"),
    ("/etc/ssl", "private"),
    ("/etc/sssd", "sssd.conf conf.d"),
    ("/usr/local/etc", "wireguard openvpn letsencrypt"),
    (
        "/var/lib",
        "kubelet docker containerd containers rancher k0s etcd tailscale sss private bluetooth iwd vault consul nomad jenkins \
         grafana gitlab-runner postgresql mysql mongodb redis rabbitmq zerotier-one letsencrypt acme caddy headscale \
         docker-desktop step-ca teleport cni lxc lxd",
    ),
    ("/var/lib/cloud", "instance instances seed"),
    ("/var/lib/NetworkManager", "secret_key"),
    ("/var/lib/samba", "private"),
    ("/var/lib/systemd", "credential.secret random-seed"),
    ("/var/lib/snmp", "snmpd.conf"),
    // Its users are root.
    ("/var/lib/incus", "unix.socket"),
    ("/var/snap/lxd/common/lxd", "unix.socket"),
    ("/var", "backups mail"),
    ("/var/spool", "cron mail"),
];

/// Where home directories of other users lie.
pub(crate) const HOMES: [&str; 2] = ["/home", "/root"];

/// What a variable names.
#[derive(Clone, Copy)]
pub(super) enum Names {
    /// What holds a credential; several are parted by colons.
    Secret,
    /// A directory that stands for this one of the home directory.
    Place(&'static str),
}

/// Variables that move what holds credentials.
pub(super) const MOVED: &[(&str, Names)] = &[
    ("ANSIBLE_VAULT_PASSWORD_FILE", Names::Secret),
    ("AWS_CONFIG_FILE", Names::Secret),
    ("AWS_SHARED_CREDENTIALS_FILE", Names::Secret),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", Names::Secret),
    ("AZURE_CONFIG_DIR", Names::Secret),
    ("BOTO_CONFIG", Names::Secret),
    ("BUNDLE_USER_CONFIG", Names::Secret),
    ("CARGO_HOME", Names::Place(".cargo")),
    ("CLAUDE_CONFIG_DIR", Names::Place(".claude")),
    ("CLOUDSDK_CONFIG", Names::Secret),
    ("CODEX_HOME", Names::Place(".codex")),
    ("COMPOSER_HOME", Names::Place(".composer")),
    ("DOCKER_CERT_PATH", Names::Secret),
    ("DOCKER_CONFIG", Names::Secret),
    ("GH_CONFIG_DIR", Names::Secret),
    ("GLAB_CONFIG_DIR", Names::Secret),
    ("GNUPGHOME", Names::Secret),
    ("GOOGLE_APPLICATION_CREDENTIALS", Names::Secret),
    ("GRADLE_USER_HOME", Names::Place(".gradle")),
    ("HELM_REGISTRY_CONFIG", Names::Secret),
    ("HELM_REPOSITORY_CONFIG", Names::Secret),
    ("HF_HOME", Names::Place(".cache/huggingface")),
    ("HF_TOKEN_PATH", Names::Secret),
    ("HISTFILE", Names::Secret),
    ("ICEAUTHORITY", Names::Secret),
    ("JUPYTER_CONFIG_DIR", Names::Secret),
    ("JUPYTER_RUNTIME_DIR", Names::Secret),
    ("KAGGLE_CONFIG_DIR", Names::Secret),
    ("KUBECONFIG", Names::Secret),
    ("LESSHISTFILE", Names::Secret),
    ("MYSQL_HISTFILE", Names::Secret),
    ("MYSQL_TEST_LOGIN_FILE", Names::Secret),
    ("NETRC", Names::Secret),
    ("NODE_REPL_HISTORY", Names::Secret),
    ("NPM_CONFIG_GLOBALCONFIG", Names::Secret),
    ("NPM_CONFIG_USERCONFIG", Names::Secret),
    ("npm_config_globalconfig", Names::Secret),
    ("npm_config_userconfig", Names::Secret),
    ("OCI_CLI_CONFIG_FILE", Names::Secret),
    ("PASSWORD_STORE_DIR", Names::Secret),
    ("PGPASSFILE", Names::Secret),
    ("PGSERVICEFILE", Names::Secret),
    ("PGSSLKEY", Names::Secret),
    ("PIP_CONFIG_FILE", Names::Secret),
    ("PSQL_HISTORY", Names::Secret),
    ("PULUMI_HOME", Names::Secret),
    ("PYTHON_HISTORY", Names::Secret),
    ("RCLONE_CONFIG", Names::Secret),
    ("REGISTRY_AUTH_FILE", Names::Secret),
    ("SNOWFLAKE_HOME", Names::Secret),
    ("SOPS_AGE_KEY_FILE", Names::Secret),
    ("SQLITE_HISTORY", Names::Secret),
    ("TALOSCONFIG", Names::Secret),
    ("TF_CLI_CONFIG_FILE", Names::Secret),
    ("WGETRC", Names::Secret),
    ("XAUTHORITY", Names::Secret),
    ("XDG_CACHE_HOME", Names::Place(".cache")),
    ("XDG_CONFIG_HOME", Names::Place(".config")),
    ("XDG_DATA_HOME", Names::Place(".local/share")),
    ("XDG_STATE_HOME", Names::Place(".local/state")),
    ("YARN_RC_FILENAME", Names::Secret),
];

/// The places of the home directory whose entries are looked at one by one.
pub(super) const PLACES: [(&str, Listed); 4] = [
    ("", Listed::Home),
    (".config", Listed::Config),
    (".local/share", Listed::Data),
    (".local/state", Listed::State),
];

/// Directories of the system: a link into them leads to nothing private.
pub(super) const SYSTEM: [&str; 14] = [
    "/bin", "/boot", "/dev", "/etc", "/gnu", "/lib", "/lib64", "/nix", "/opt", "/proc", "/run",
    "/sbin", "/sys", "/usr",
];

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
            Self::Claude => &[
                ".claude.json",
                ".claude/.credentials.json",
                ".claude/history.jsonl",
            ],
            Self::Codex => &[".codex/auth.json", ".codex/history.jsonl"],
            Self::Aider => &[".aider.conf.yml", ".aider"],
            Self::Gemini => &[
                ".gemini/oauth_creds.json",
                ".gemini/google_accounts.json",
                ".gemini/mcp-oauth-tokens.json",
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
