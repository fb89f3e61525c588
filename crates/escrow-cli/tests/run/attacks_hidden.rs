//! Which files and variables a command gets: a table with the wanted answer for each, what is said of those that it looked for, and
//! what shows them.

use crate::*;

/// What is private in a home directory, whether a list names it or none.
const PRIVATE: &str = ".ssh/id_ed25519 .aws/credentials .config/gcloud/credentials.db .docker/config.json .npmrc .netrc \
    .git-credentials .config/gh/hosts.yml .mozilla/firefox/x/logins.json .config/chromium/Default/Cookies .password-store/a.gpg \
    .azure/accessTokens.json .terraform.d/credentials.tfrc.json .m2/settings.xml .m2/settings-security.xml \
    .gradle/daemon/8.5/registry.bin .gradle/gradle.properties .bash_history .local/share/fish/fish_history .python_history \
    .sqlite_history .lesshst .psql_history .mysql_history .pgpass .pg_service.conf .mylogin.cnf .vault-token .Xauthority \
    .ICEauthority .config/pip/pip.conf .pip/pip.conf .config/pypoetry/auth.toml .gem/credentials .composer/auth.json \
    .nuget/NuGet/NuGet.Config .ivy2/.credentials .sbt/.credentials .cabal/config .hgrc .subversion/auth/svn.simple/x .wgetrc .curlrc \
    .s3cfg .boto .mc/config.json .config/doctl/config.yaml .config/linode-cli .config/scw/config.yaml .config/ngrok/ngrok.yml \
    .ngrok2/ngrok.yml .local/share/com.vercel.cli/auth.json .vercel/auth.json .netlify/config.json .fly/config.yml \
    .railway/config.json .config/.wrangler/config/default.toml .config/configstore/firebase-tools.json .supabase/access-token \
    .config/turso/settings.json .snowflake/config.toml .snowsql/config .kaggle/kaggle.json .huggingface/token \
    .cache/huggingface/token .cache/huggingface/stored_tokens .config/wandb/settings .jupyter/jupyter_server_config.json \
    .local/share/jupyter/runtime/jpserver-1.json .config/code-server/config.yaml .vscode-server/data/Machine/.connection-token \
    .config/Cursor/User/globalStorage/state.vscdb .config/Slack/Cookies .config/discord/Cookies \
    .local/share/TelegramDesktop/tdata/key .thunderbird/x/logins.json .muttrc .msmtprc .offlineimaprc \
    .config/filezilla/sitemanager.xml .local/share/remmina/x.remmina .vnc/passwd Passwords.kdbx id_rsa work.pem \
    .local/share/keyrings/login.keyring .config/Bitwarden/data.json .config/op/config .config/age/keys.txt .age/key.txt \
    .minikube/ca.key .helm/x .config/helm/registry/config.json .config/containers/auth.json .argocd/config .config/k9s/x \
    .pulumi/credentials.json .chef/x.pem .vault_pass .ansible_vault_pass .aliyun/config.json .tccli/x .cloudflared/cert.pem \
    .config/cloudflare/x .config/syncthing/config.xml .config/transmission/settings.json .config/solana/id.json .ethereum/keystore/x \
    .electrum/wallets/w .gitlab-token .config/glab-cli/config.yml .config/github-copilot/hosts.json .copilot/config.json .claude.json \
    .claude/.credentials.json .codex/auth.json .codex/history.jsonl .gemini/oauth_creds.json .aider.conf.yml .aider.chat.history.md \
    .local/share/opencode/auth.json .continue/config.json .codeium/config.json .config/goose/secrets.yaml .config/openai/key \
    .openai/api_key .config/anthropic .ollama/id_ed25519 .config/amp/settings.json .local/share/amp/secrets.json .config/mcp/mcp.json \
    .envrc .secrets .s3ql/authinfo2 .config/aerc/accounts.conf .authinfo.gpg .purple/accounts.xml .irssi/config .config/hexchat/x \
    .davfs2/secrets .smbcredentials .cargo/credentials.toml .config/stripe/config.toml .config/git/credentials .foundry/keystores/k \
    .dotnet/corefx/cryptography/x509stores/k .local/share/uv/credentials/c.toml .local/state/wireplumber/x .bundle/config \
    .config/unheard-of/token .unheard-of .local/share/unheard-of/x otherproj/.env otherproj/config/master.key otherproj/secrets.yml \
    Downloads/key.json Downloads/server.key Documents/id_ed25519_old";

/// What tools need, and what is no secret.
const PLAIN: &str = ".bashrc .profile .zshrc .zshenv .bash_profile .inputrc .bash_aliases .kshrc .gitconfig .config/git/config \
    .config/git/ignore .vimrc .vim/vimrc .config/nvim/init.lua .emacs.d/init.el .tmux.conf .config/helix/config.toml .nanorc \
    .editorconfig .rustup/settings.toml .cargo/config.toml .cargo/bin/tool .nvm/nvm.sh .pyenv/version .rbenv/version .sdkman/bin/x \
    .volta/bin/x .asdf/asdf.sh .local/bin/tool .local/lib/x .local/share/mise/x .local/share/pnpm/x .local/share/uv/tools/x \
    .local/share/fnm/x .local/share/nvim/x .bun/bin/x .deno/bin/x .ghcup/bin/x .opam/x .stack/config.yaml .gradle/caches/x \
    .m2/repository/x .cache/pip/x .cache/huggingface/hub/x .npm/_cacache/x .pnpm-store/x .claude/settings.json .codex/config.toml \
    .config/opencode/opencode.json .local/share/opencode/log/x .config/goose/config.yaml .config/starship.toml \
    .config/fish/config.fish go/pkg/mod/x Documents/notes.txt id_rsa.pub otherproj/.env.example otherproj/src/main.rs";

/// A home directory with all of it, around the project `src/app`.
fn home(world: &World) -> PathBuf {
    let home = world.dir("user-home");
    for name in PRIVATE.split_whitespace().chain(PLAIN.split_whitespace()) {
        let path = home.join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
        write(path, "precious\n");
    }
    home
}

/// Which of the names of a list can be read below a directory.
const READ: &str =
    "while read -r name; do grep -qs precious \"$1/$name\" && echo \"$name\"; done < list; true";

/// Reads each name of a list inside, by itself.
fn readable((world, cli): (&World, &Cli), line: &str, from: &Path, names: &str) -> Vec<String> {
    let script = format!("set -- {}; {READ}", from.display());
    let list: String = names
        .split_whitespace()
        .map(|name| format!("{name}\n"))
        .collect();
    write(world.at("app/list"), list);
    let said = cli.ok(inside(line, &script));
    said.lines().map(str::to_owned).collect()
}

fn sorted(names: &str) -> Vec<String> {
    names.split_whitespace().map(str::to_owned).collect()
}

// attack D22
#[test]
fn d22_what_no_list_names_was_read() {
    as_user_too();
    let (world, cli) = world();
    let home = home(&world);
    let before = signature(&home);
    let cli = cli.env("HOME", &home);
    let all = format!("{PRIVATE} {PLAIN}");
    for line in ["run --rollback", "run --rollback --no-scratch"] {
        assert_eq!(
            readable((&world, &cli), line, &home, &all),
            sorted(PLAIN),
            "{line}"
        );
    }
    // A tool that writes its own finds a place, which is gone afterwards.
    let write_them = "mkdir -p ~/.config/stripe ~/.ssh && echo x > ~/.config/stripe/new && cat ~/.config/stripe/new
        echo y > ~/.aider.conf.yml && cat ~/.aider.conf.yml; test -e ~/.netrc || echo absent; echo z > ~/.bashrc";
    let outcome = cli.says(inside("run --new --rollback", write_them), "x\ny\nabsent\n");
    has(
        &outcome.stderr_text(),
        ["in the home directory, never committed: 1 modified"],
    );
    unchanged(&before, &home);
    assert_quiet(&world);
}

/// The same where the home directory lies in the project's own parent, and credentials lie beside the project.
#[test]
fn what_lies_in_a_project_beside_is_not_read() {
    as_user_too();
    let (world, cli) = world();
    for name in ["other/.env", "other/notes", "app/.env", "prod.pem"] {
        let path = world.at(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
        write(path, "precious\n");
    }
    let cli = cli.env("HOME", world.dir("user-home"));
    let names = "other/.env other/notes app/.env prod.pem";
    let found = readable((&world, &cli), "run --rollback", &world.at(""), names);
    assert_eq!(found, ["other/notes", "app/.env"]);
    // What one works on is seen.
    let found = readable(
        (&world, &cli),
        "run --new --rollback -r . -r ../other",
        &world.at(""),
        names,
    );
    assert_eq!(found, ["other/.env", "other/notes", "app/.env"]);
}

#[test]
fn what_a_variable_moved_was_read() {
    as_user_too();
    let (world, cli) = world();
    let moved = world.dir("moved");
    let files = [
        ("XDG_CONFIG_HOME", "config", "gh/hosts.yml"),
        ("XDG_DATA_HOME", "data", "keyrings/k"),
        ("CARGO_HOME", "cargo", "credentials.toml"),
        ("KUBECONFIG", "kube.yaml", ""),
        ("AWS_SHARED_CREDENTIALS_FILE", "aws-credentials", ""),
        ("AWS_CONFIG_FILE", "aws-config", ""),
        ("DOCKER_CONFIG", "docker", "config.json"),
        ("GNUPGHOME", "gnupg", "private-keys-v1.d/k"),
        ("NETRC", "netrc", ""),
        ("NPM_CONFIG_USERCONFIG", "npm", ""),
        ("PIP_CONFIG_FILE", "pip.conf", ""),
        ("PGPASSFILE", "pass", ""),
        ("PGSERVICEFILE", "service", ""),
        ("GOOGLE_APPLICATION_CREDENTIALS", "google", ""),
    ];
    let mut cli = cli.env("HOME", world.dir("user-home"));
    let mut names = "config/nvim/init.lua cargo/config.toml".to_owned();
    for (variable, at, inner) in files {
        let path = moved.join(at).join(inner);
        let path = if inner.is_empty() {
            moved.join(at)
        } else {
            path
        };
        fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
        write(&path, "precious\n");
        names += &format!(" {at}/{inner}");
        cli = cli.env(variable, moved.join(at));
    }
    for name in ["config/nvim/init.lua", "cargo/config.toml"] {
        fs::create_dir_all(moved.join(name).parent().expect("it has one")).expect("there is room");
        write(moved.join(name), "precious\n");
    }
    let names = names.replace("/ ", " ");
    let names = names.trim_end_matches('/');
    let found = readable((&world, &cli), "run --rollback", &moved, names);
    assert_eq!(found, ["config/nvim/init.lua", "cargo/config.toml"]);
    // A variable that leads to nothing private hides nothing.
    let cli = cli
        .env("HISTFILE", "/dev/null")
        .env("XDG_CONFIG_HOME", "/usr")
        .env("GNUPGHOME", "/");
    cli.says(
        inside(
            "run --new --rollback",
            "echo x > /dev/null; test -e /usr/bin/env && pwd",
        ),
        format!("{}\n", world.at("app").display()),
    );
}

#[test]
fn what_was_looked_for_is_named_with_what_shows_it() {
    as_user_too();
    let (world, cli) = world();
    let home = home(&world);
    let cli = cli.env("HOME", &home);
    let script = "echo x > kept; cat ~/.config/stripe/config.toml || test -s ~/.netrc || cat ~/.bash_history || cat ~/.bashrc";
    let said = cli.says(inside("run", script), "precious\n").stderr_text();
    has(
        &said,
        [
            "hidden: ~/.config/stripe (the command looked for it): `--show ~/.config/stripe`",
            "hidden: ~/.netrc (the command looked for it): `--show ~/.netrc`",
        ],
    );
    lacks(&said, ["~/.bash", "precious"]);
    lacks(
        &cli.run(inside("run", "ls ~ > /dev/null; cat ~/.bashrc"))
            .stderr_text(),
        ["hidden: "],
    );
    // What shows it brings it back, also in a plan that began without.
    let line = "--json run --plan app --show ../user-home/.config/stripe";
    let script = "cat ~/.config/stripe/config.toml >&2; cat ~/.netrc; true";
    let outcome = cli.run(inside(line, script));
    let document: Value = serde_json::from_slice(&outcome.stdout).expect("one document");
    let netrc = home.join(".netrc").display().to_string();
    assert_eq!(
        document["hidden"],
        value!([netrc]),
        "{}",
        outcome.stderr_text()
    );
    has(&outcome.stderr_text(), ["precious"]);
    let many = cli
        .run(inside(
            "run --rollback --plan app",
            "cat ~/.[a-z]*/x ~/.[a-z]*; true",
        ))
        .stderr_text();
    assert!(many.matches("hidden: ").count() == 4, "{many}");
}

/// A variable that was withheld came back by the shell's own start file, and a password by git's configuration.
#[test]
fn start_files_and_gits_configuration_are_seen_without_their_secrets() {
    as_user_too();
    let (world, cli) = world();
    let home = world.dir("user-home");
    write(
        home.join(".bashrc"),
        "export GITHUB_TOKEN=hunter2\nexport KEPT=yes\nif true; then\nexport API_KEY=hunter2\nfi\n",
    );
    let config = "[user]\n\tname = Ann Example\n\temail = ann@example.org\n[url \"https://ann:hunter2@h/\"]\n\tinsteadOf = https://h/\n";
    write(home.join("dotfiles-git"), config);
    symlink("dotfiles-git", home.join(".gitconfig"));
    write(home.join(".profile"), "export PLAIN=1\n");
    sh(&home, "touch -d @1000 .bashrc; chmod 640 .bashrc");
    let before = signature(&home);
    let cli = cli.env("HOME", &home);
    let script = ". ~/.bashrc; . ~/.profile; echo $KEPT $PLAIN ${GITHUB_TOKEN-none} ${API_KEY-none}; git config user.name
        grep -c hunter2 ~/.bashrc ~/.gitconfig ~/dotfiles-git | cut -d: -f2 | tr '\\n' ' '; stat -c '%a %Y' ~/.bashrc; git config -l | grep -c hunter2
        echo 'alias x=y' >> ~/.bashrc; tail -1 ~/.bashrc";
    let said = "yes 1 none none\nAnn Example\n0 0 0 640 1000\n0\nalias x=y\n";
    let outcome = cli.says(inside("run --rollback", script), said);
    has(
        &outcome.stderr_text(),
        ["in the home directory, never committed: 1 modified"],
    );
    cli.says(
        inside(
            "run --new --rollback --show ../user-home/.bashrc",
            "grep -c hunter2 ~/.bashrc",
        ),
        "2\n",
    );
    unchanged(&before, &home);
    assert_quiet(&world);
}

/// Root could read what services and their users keep.
// attack D24
#[test]
fn d24_what_services_keep_was_read() {
    let (world, cli) = world();
    if !is_root() {
        return;
    }
    let private = "etc/letsencrypt/live/x/privkey.pem etc/kubernetes/admin.conf etc/ssl/private/k etc/ssh/ssh_host_rsa_key \
        etc/mysql/debian.cnf etc/exim4/passwd.client etc/ppp/chap-secrets etc/ipsec.secrets etc/app-secrets/x etc/rancher/k3s/k3s.yaml \
        etc/docker/key.json etc/postfix/sasl_passwd etc/apt/auth.conf.d/x etc/wireguard/wg0.conf etc/security/opasswd \
        etc/NetworkManager/system-connections/w etc/gitlab/gitlab-secrets.json var/lib/kubelet/pki/k var/lib/docker/x \
        var/lib/containerd/x var/lib/postgresql/15/x var/lib/tailscale/s var/lib/cloud/instance/user-data.txt var/backups/shadow.bak \
        var/spool/cron/crontabs/root";
    let plain = "etc/ssh/ssh_config etc/ssl/openssl.cnf etc/hosts etc/apt/sources.list var/lib/dpkg/status var/lib/misc/x";
    // In a mount namespace of its own, in which the machine has all of this.
    let setup = "for dir in etc var/lib var/backups var/spool; do mkdir -p $MADE/$dir; mount --bind $MADE/$dir /$dir; done; exec \"$0\" \"$@\"";
    let made = world.dir("machine");
    sh(
        &made,
        "mkdir -p etc; cp -a /etc/passwd /etc/group /etc/ld.so* /etc/alternatives etc 2>/dev/null; true",
    );
    for name in private.split_whitespace().chain(plain.split_whitespace()) {
        let path = made.join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
        write(path, "precious\n");
    }
    let names: String = format!("{private} {plain}")
        .split_whitespace()
        .map(|name| format!("{name}\n"))
        .collect();
    write(world.at("app/list"), names);
    let outer = ["unshare", "-m", "sh", "-euc", setup];
    let mut command = cli.behind(
        &outer,
        inside("run --rollback", &format!("set -- ''; {READ}")),
    );
    command
        .env("MADE", &made)
        .env("HOME", world.dir("user-home"));
    command.env("ESCROW_HOME", world.dir("state"));
    let output = command.output().expect("there is an unshare");
    let said = String::from_utf8_lossy(&output.stdout);
    let found: Vec<&str> = said.lines().collect();
    let expected: Vec<&str> = plain.split_whitespace().collect();
    assert_eq!(
        found,
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// By what stands in the value, under names that are passed.
// attack D23
#[test]
fn d23_a_secret_within_a_value_was_passed_on() {
    let (_world, cli) = world();
    let secret = [
        ("npm_config__authToken", "hunter2"),
        ("PIP_EXTRA_INDEX_URL", "https://hunter2@pypi.example/simple"),
        ("UV_INDEX_URL", "https://ann:hunter2@pypi.example/simple"),
        ("GOPROXY", "https://hunter2@goproxy.example,direct"),
        (
            "JAVA_TOOL_OPTIONS",
            "-Xmx1g -Djavax.net.ssl.keyStorePassword=hunter2",
        ),
        ("_JAVA_OPTIONS", "-Dhttp.proxyPassword=hunter2"),
        ("MAVEN_OPTS", "-Drepo.password=hunter2"),
        ("GRADLE_OPTS", "-Psigning.secretKey=hunter2 -Dtoken=hunter2"),
        ("MAKEFLAGS", "DEPLOY_TOKEN=hunter2"),
        ("SCCACHE_REDIS_KEY", "hunter2"),
        (
            "CCACHE_REMOTE_STORAGE",
            "http://cache.example|bearer-token=hunter2",
        ),
        ("http_proxy", "http://ann:hunter2@proxy.example:3128"),
        ("ANDROID_SIGNING", "hunter2"),
        ("DEBUG", "token=hunter2"),
        ("DOTNET_X", "Server=db;Password=hunter2"),
    ];
    let plain = [
        ("PIP_INDEX_URL", "https://pypi.org/simple"),
        ("GOFLAGS", "-mod=mod"),
        ("MAVEN_ARGS", "-Dfile.encoding=UTF-8"),
        ("MAKELEVEL", "1"),
        ("https_proxy", "http://proxy.example:3128"),
        ("NODE_OPTIONS", "--max-old-space-size=4096"),
        ("CARGO_TERM_COLOR", "never"),
    ];
    let all = secret.iter().chain(&plain);
    let cli = all.fold(cli, |cli, (name, value)| cli.env(name, value));
    let outcome = cli.run(inside("--json run --rollback", "env >&2"));
    let said = outcome.stderr_text();
    lacks(&said, ["hunter2"]);
    for (name, value) in plain {
        has(&said, [format!("{name}={value}").as_str()]);
    }
    let document: Value = serde_json::from_slice(&outcome.stdout).expect("one document");
    for (name, _) in secret {
        has(
            &document["not_passed"].to_string(),
            [format!("\"{name}\"").as_str()],
        );
    }
    lacks(&document.to_string(), ["hunter2"]);
}
