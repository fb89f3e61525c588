#!/usr/bin/python3
"""Stands in for a coding agent: keeps, refreshes and plants files where, and as, the real one does."""
import json, os, sqlite3, sys

name, home = os.path.basename(sys.argv[0]), os.path.expanduser("~")
AGENTS = {  # session, further state, credential and how it is written, configuration that executes
    "claude": (".claude/projects/p/s.jsonl", ".claude/history.jsonl", ".claude/.credentials.json", "rename", ".claude/settings.json"),
    "codex": (".codex/sessions/2026/s.jsonl", ".codex/state_5.sqlite", ".codex/auth.json", "beside", ".codex/config.toml"),
    "gemini": (".gemini/tmp/x/chats/s.jsonl", ".gemini/projects.json", ".gemini/oauth_creds.json", "place", ".gemini/settings.json"),
    "opencode": (".local/share/opencode/log/s.log", ".local/share/opencode/opencode.db", ".local/share/opencode/auth.json", "place", ".config/opencode/opencode.json"),
    "aider": (".aider/caches/s", ".aider/analytics.json", None, None, ".aider.conf.yml"),
    "copilot": (".copilot/session-state/s", ".copilot/history.db", ".copilot/auth.json", "place", ".copilot/mcp-config.json"),
    "goose": (".local/share/goose/sessions/s", None, None, None, ".config/goose/config.yaml"),
    "qwen": (".qwen/tmp/s", ".qwen/installation_id", ".qwen/oauth_creds.json", "place", ".qwen/settings.json"),
    "cline": (".cline/data/tasks/s", None, ".cline/data/secrets.json", "place", ".cline/data/settings/mcp.json"),
    "crush": (".local/share/crush/logs/s", ".local/share/crush/projects.json", None, None, ".config/crush/crush.json"),
}
session, state, login, how, config = AGENTS[name]
session, state, login, config = (one and os.path.join(home, one) for one in (session, state, login, config))


def read(path):
    return open(path).read() if path and os.path.exists(path) else "-\n"


def write(path, text, mode="w"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, mode) as file:
        file.write(text)


def remember(word):
    write(session, word + "\n", "a")
    if state and state.endswith((".sqlite", ".db")):
        with sqlite3.connect(state) as db:
            db.execute("pragma journal_mode=wal")
            db.execute("create table if not exists t (w)")
            db.execute("insert into t values (?)", (word,))
    elif state and state.endswith("projects.json"):
        write(state + ".tmp", json.dumps({"projects": {word: 1}}))
        os.rename(state + ".tmp", state)
    elif state:
        write(state, word + "\n", "a")


def recall():
    if state and state.endswith((".sqlite", ".db")):
        return read(session) + " ".join(row[0] for row in sqlite3.connect(state).execute("select w from t")) + "\n"
    return read(session) + read(state)


def refresh(token):
    text = json.dumps({"token": token})
    if how == "rename":  # Falls back to the file where it is a mount.
        write(login + ".tmp", text)
        try:
            os.rename(login + ".tmp", login)
        except OSError:
            os.unlink(login + ".tmp")
            write(login, text)
    elif how == "beside":  # Resolves a link first.
        real = os.path.realpath(login)
        write(real + ".tmp", text)
        os.rename(real + ".tmp", real)
    elif how == "place":
        write(login, text)


for word in sys.argv[1:]:
    verb, _, value = word.partition("=")
    if verb == "remember":
        remember(value)
    elif verb == "recall":
        print(recall(), end="")
    elif verb == "refresh":
        refresh(value)
    elif verb == "login":
        print(read(login).strip())
    elif verb == "plant":
        write(config, value)
    elif verb == "words":
        print(" ".join(sys.argv[1:]))
    elif verb == "env":
        print(os.environ.get(value, "unset"))
    elif verb == "edit":
        write(os.path.abspath(value), "by the agent\n")
    elif verb == "sh":
        os.system(value)
