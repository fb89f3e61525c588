//! The table of autorun files, by name: which program runs which file.
//!
//! A file that may name what is run counts whatever of it was changed: which part of it another program
//! reads, and what that fetches, is not known here. Better one line too many than a script unseen.

/// Who runs which files. A pattern names a file at any depth, one with a final `/` everything in such
/// a directory; `*` stands for anything at the beginning or the end of a name. The first one counts.
pub(super) const TABLE: &[(&str, &str)] = &[
    (
        "a git hook",
        "*.git/hooks/ .githooks/ .husky/ .lefthook/ lefthook.yml lefthook.yaml .lefthook.yml .lefthook.yaml \
         .overcommit.yml .huskyrc* .lintstagedrc* .simple-git-hooks* simple-git-hooks* .commitlintrc* \
         .pre-commit-config.yaml .pre-commit-hooks.yaml",
    ),
    (
        "git runs the programs that its settings name",
        "*.git/config *.git/config.worktree *.git/modules/ *.git/worktrees/ *.git/info/attributes \
         .gitattributes .gitconfig .config/git/",
    ),
    (
        "a CI service runs it",
        ".github/workflows/ .github/actions/ action.yml action.yaml .gitlab-ci.yml .gitlab-ci.yaml \
         .gitlab/ci/ .gitea/workflows/ .forgejo/workflows/ jenkinsfile* .circleci/ azure-pipelines* \
         .azure-pipelines/ bitbucket-pipelines.yml .travis.yml .drone.yml .woodpecker* .woodpecker/ \
         .cirrus.yml .cirrus.star .buildkite/ .teamcity/ .ci/ appveyor.yml .appveyor.yml cloudbuild.yaml \
         buildspec.yml",
    ),
    (
        "an editor runs what it names",
        ".vscode/ *.code-workspace .idea/ .fleet/ .zed/ .config/zed/ .devcontainer/ .devcontainer.json \
         *.sublime-project .vim/ .vimrc .nvimrc .nvim.lua .exrc .config/nvim/ .emacs .emacs.d/ .dir-locals.el",
    ),
    ("it configures the sandboxes of agents", "escrow.yaml"),
    (
        "a coding agent runs or obeys it",
        ".mcp.json .claude/ claude.md claude.local.md .codex/ agents.md agents.override.md .agents/ .gemini/ gemini.md .qwen/ qwen.md \
         .opencode/ opencode.json opencode.jsonc .aider.conf.yml .aider.model.settings.yml conventions.md .goose/ .goosehints \
         .github/copilot-instructions.md .github/instructions/ .github/prompts/ .github/agents/ .copilot/ .cline/ .clinerules \
         .clinerules/ .crush/ .crush.json crush.json crush.md .cursor/ .cursorrules .windsurf/ .windsurfrules .roo/ .roomodes \
         .kilocode/ .continue/ .amp/ .augment/ .junie/ .kiro/ .trae/ .worktreeinclude",
    ),
    (
        "a shell or a terminal reads it when it starts",
        ".envrc .direnv/ .config/direnv/ .bashrc .bash_profile .bash_login .bash_logout .bash_aliases \
         .profile .zshrc .zshenv .zprofile .zlogin .zlogout .kshrc .cshrc .tcshrc .login .config/fish/ \
         .tmux.conf .config/tmux/ .screenrc .mise.toml mise.toml .gdbinit .lldbinit",
    ),
    (
        "it runs at login, or by the clock",
        ".ssh/ .xinitrc .xprofile .xsession .config/autostart/ .config/systemd/ *.service *.timer *.desktop \
         crontab cron.d/ cron.hourly/ cron.daily/ cron.weekly/ cron.monthly/ rc.local",
    ),
    (
        "a package manager runs the scripts it names, and those of what it fetches",
        "package.json package.json5 package.yaml package-lock.json npm-shrinkwrap.json yarn.lock \
         pnpm-lock.yaml pnpm-workspace.yaml bun.lock bun.lockb .npmrc .yarnrc .yarnrc.yml .yarn/ \
         .pnpmfile.cjs .pnpmfile.mjs bunfig.toml deno.json deno.jsonc deno.lock nx.json turbo.json lerna.json \
         rush.json cargo.toml cargo.lock pyproject.toml setup.cfg *requirements.txt requirements-* pipfile \
         pipfile.lock poetry.lock uv.lock pdm.lock pip.conf gemfile gemfile.lock *.gemspec composer.json \
         composer.lock mix.exs mix.lock rebar.config go.mod go.work package.swift podfile *.podspec *.csproj \
         *.fsproj *.vbproj *.vcxproj nuget.config *.cabal stack.yaml *.opam dune-project project.clj deps.edn \
         brewfile",
    ),
    (
        "builds, tests or installs run it",
        "binding.gyp *.config.js *.config.cjs *.config.mjs *.config.ts *.config.mts *.config.cts .babelrc* \
         .eslintrc* .prettierrc* .mocharc* gruntfile.js gulpfile.js makefile gnumakefile makefile.* *.mk \
         cmakelists.txt *.cmake meson.build configure configure.ac build.ninja build.rs hatch_build.py \
         pdm_build.py setup.hs dune directory.build.props directory.build.targets .cargo/config \
         .cargo/config.toml rust-toolchain rust-toolchain.toml setup.py tox.ini noxfile.py conftest.py \
         sitecustomize.py usercustomize.py *.pth build.gradle* settings.gradle* init.gradle* gradle/wrapper/ \
         pom.xml .mvn/ build.xml build.sbt rakefile extconf.rb build.zig build.bazel workspace \
         workspace.bazel module.bazel *.bzl .bazelrc flake.nix shell.nix default.nix justfile .justfile \
         taskfile.yml taskfile.yaml sconstruct wscript snakefile procfile vagrantfile dockerfile* \
         containerfile* compose.yml compose.yaml docker-compose*",
    ),
];
