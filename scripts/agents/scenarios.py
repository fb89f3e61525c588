#!/usr/bin/env python3
"""Real coding agents in Escrow, with a scripted model instead of a network.

    scenarios.py [--agent NAME]… [--scenario NAME]… [--user root|ordinary]… [--keep]

Prints one line for each scenario: agent, version, scenario, user, and `ok`, `FAILED` with why, or `none` with why there
is nothing to look at. Fails if one failed. The clients are those that fetch.sh has fetched into AGENTS (target/agents),
the program is ESCROW_BIN (target/debug/escrow). Root runs everything twice, as root and as an ordinary user. --keep
leaves the worlds in AGENTS/worlds.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import traceback

from clients import CLIENTS
from world import Failed, Running, World, explain, last_lines, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORD = "giraffe-7321"
MAKE = "echo pear > made.txt\n"


def made(world):
    return (world.project / "made.txt").exists()


def ended_well(world, ended, what):
    world.need(ended.status == 0, f"{what} ended with {ended.status}: {last_lines(ended.text)}")


def holds_a_plan(world):
    """The plan holds what the step made, and the original does not."""
    status = world.run_escrow("status")
    world.check(status.status == 0, f"`escrow status` ended with {status.status}: {last_lines(status.text)}")
    diff = world.run_escrow("diff", "--name-status")
    world.need(diff.status == 0 and "made.txt" in diff.out, f"`escrow diff` lacks made.txt: {last_lines(diff.text)}")
    world.check(not made(world), "made.txt is in the original before the commit")


def commit(world):
    ended_well(world, world.run_escrow("commit", "--yes"), "`escrow commit`")
    world.check(made(world) and (world.project / "made.txt").read_text() == "pear\n", "made.txt was not committed")


def knows(world, name):
    world.check(world.model_was_sent(name, WORD), "the next session does not know the first")


# Scenarios


def edit(world, permits=True):
    """The agent writes a file and runs a command by its tool: nothing is there before the commit, all of it after."""
    script = (
        f"{MAKE}test \"$(cat made.txt)\" = pear\necho checked > checked.txt\necho the-{{step}}-ran | tr -d '{{}}'\n"
    )
    ended = world.session("edit", f"please edit, {WORD}", script, permits=permits)
    ended_well(world, ended, "the session")
    if world.client.name != "aider":
        # Aider tells its model of a test only when that failed.
        world.check(world.model_was_sent("edit", "the-step-ran"), "the model was not told what the command wrote")
        world.check("that is all" in ended.out, f"the answer was not shown: {last_lines(ended.text)}")
    world.check(re.search(r"^project: .*\b[1-9]\d* added", ended.err, re.M), f"no summary: {last_lines(ended.err)}")
    holds_a_plan(world)
    world.check(not (world.project / "checked.txt").exists(), "checked.txt is in the original before the commit")
    commit(world)
    world.check((world.project / "checked.txt").exists(), "checked.txt was not committed")


def bare(world):
    """The same with nothing typed that stops questions: a preset does that."""
    edit(world, permits=False)


def talk(world):
    """A user talks with the agent on a terminal, and is asked nothing, neither at first nor before its tools run."""
    session = Running(world, "talk", None, MAKE, terminal=True, permits=False)
    session.say(f"please edit, {WORD}", session.has_begun)
    session.say(world.client.leave, session.is_over)
    status = session.ended()
    world.check(status == 0, f"the session ended with {status}: {last_lines(session.shown())}")
    holds_a_plan(world)
    commit(world)


def again(world):
    """A second session goes on with the first, in a new plan after the commit."""
    ended_well(world, world.session("first", f"remember {WORD}", MAKE), "the first session")
    commit(world)
    ended = world.session("second", "what was it", answer="second answer", again=True)
    knows(world, "second")
    world.check(ended.status == 0, f"the second session ended with {ended.status}: {last_lines(ended.text)}")


def token(world):
    """A token file that was changed inside, as a client changes it, is there outside."""
    login = world.client.login
    world.write_home({login.path: login.text("token-old")})
    new = world.path / "steps" / "token"
    new.write_text(login.text("token-new"))
    script = f'umask 077\nnew={new}\npath="$HOME/{login.path}"\n{login.replace}{MAKE}'
    ended_well(world, ended := world.session("token", "hello", script), "the session")
    there = (world.home / login.path).read_text()
    world.check(there == new.read_text(), "the token that was changed inside is not there outside")
    diff = world.run_escrow("diff", "--name-status")
    world.check("made.txt" in diff.out, f"the step did not come to its end: {last_lines(ended.text)}")
    world.check((world.home / login.path).stat().st_mode & 0o077 == 0, "others may read the token")


def refresh(world):
    """A token that the client itself refreshed is there outside. The model plays the server of tokens."""
    login, port = world.client.login, world.model.port
    world.write_home({login.path: login.text("token-old")})
    if world.client.name == "gemini":
        settings = {"security": {"auth": {"selectedType": "oauth-personal"}}}
        world.write_home({".gemini/settings.json": json.dumps(settings)})
    front, variables = login.session(port, str(world.authority.certificate))
    turns = [{"token": login.refreshed}, {"text": "that is all"}]
    world.give()
    world.model.follow(turns, world.record("refresh"))
    # How the session ends does not matter: of what comes after the login, the model knows nothing.
    ended = world.run(world.session_words("hello", variables=variables, front=front))
    asked = [one for one in world.requests("refresh") if one["path"].endswith("/token")]
    world.need(asked, f"the client refreshed nothing: {last_lines(ended.text)}")
    there = (world.home / login.path).read_text()
    world.check(login.refreshed in there, "the refreshed token is not there outside")
    world.check(len(asked) == 1, f"it was refreshed {len(asked)} times in one session")


def plant(world):
    """What a session plants in the home and the checkout is named, stays out of the home, and runs nowhere."""
    marker = world.path / "outside" / "marker"
    # What was planted leaves a file where it may, and tells the model where it may not.
    world.step("planted", f"if [ -w {marker.parent} ]; then touch {marker}; fi\n{world.tell('planted')}")
    command = f"bash {world.path}/steps/planted.sh"
    plants = {
        ".bashrc": f"{command}\n",
        ".profile": f"{command}\n",
        ".config/git/config": f'[core]\n\tfsmonitor = "{command}; false"\n',
        **world.client.plants(world.model.port, command),
    }
    source = world.path / "steps" / "home"
    for path, text in plants.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    # Where one file cannot be written, the others are tried.
    script = f"cd {source}\nfind . -type f | while read -r path; do\n"
    script += '  mkdir -p "$HOME/${path%/*}" && cp "$path" "$HOME/$path" || echo "refused: $path"\ndone\n'
    script += f"cd {world.project}\n{MAKE}echo '{command}' > .envrc\ngit config core.fsmonitor '{command}; false'\n"
    before = world.files_of_home()
    ended_well(world, ended := world.session("plant", "please plant", script), "the session")
    after = world.files_of_home()
    changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    world.check(not changed, f"changed in the real home: {', '.join(changed)}")
    holds_a_plan(world)
    # A directory that holds only what was planted stands for its files.
    unnamed = [path for path in plants if re.sub(r"(/planted)/.*", r"\1", path) not in ended.err]
    world.check(not unnamed, f"the end of the run does not name {', '.join(unnamed)}")
    preview = world.run_escrow("commit", "--dry-run")
    for path in (".envrc", ".git/config"):
        named = re.search(rf"runs later .*{re.escape(path)}", preview.text)
        world.check(named, f"`escrow commit --dry-run` does not say that {path} runs later")

    ended_well(world, world.run_escrow("rollback", "--yes"), "`escrow rollback`")
    ended_well(world, world.session("new", "hello again", answer="fine"), "the session of a new plan")
    world.check(not planted_ran(world, "new"), "what was planted ran in the session of a new plan")
    ended_well(world, world.session("last", "please plant again", script), "the last session")
    commit(world)
    for what in outside(world, marker):
        world.check(False, f"what was planted ran: {what}")

    # Planted for real, it does run: else nothing was looked at.
    world.write_home(plants)
    world.give()
    control = outside(world, marker)
    for what in (world.client.name, "a shell", "a login shell", "git"):
        world.check(what in control, f"these scripts plant nothing that runs: {what}")


def planted_ran(world, name):
    return any(one["path"] == "/planted" for one in world.requests(name))


def outside(world, marker):
    """Which of the agent, a shell and git outside start something that was planted."""
    client = world.client
    words, permitting = client.permits
    ran = []
    for what, command in (
        (client.name, [client.name, *words, *client.words("hello", False, "")]),
        ("a shell", ["bash", "-ic", "true"]),
        ("a login shell", ["bash", "-lc", "true"]),
        ("git", ["git", "status"]),
    ):
        world.record("outside").unlink(missing_ok=True)
        world.model.follow([*client.tool("true"), {"text": "fine"}], world.record("outside"))
        world.run(command, {**client.variables(world.model.port), **permitting})
        if marker.exists() or planted_ran(world, "outside"):
            ran.append(what)
        marker.unlink(missing_ok=True)
    return ran


def killed(world, how, terminal=False, remembers=True):
    """After a bad end of a session the plan is whole, and a next session works and knows the first."""
    session = Running(world, "killed", f"remember {WORD}", MAKE, terminal)
    session.began()
    how(session)
    session.ended()
    wait_until("all processes of the run ended", lambda: not world.processes())
    holds_a_plan(world)
    ended = world.session("next", "what was it", answer="fine again", again=True)
    fine = ended.status == 0 and "fine again" in ended.out
    if not world.check(fine, f"the next session ended with {ended.status}: {last_lines(ended.text)}"):
        ended = world.session("fresh", "hello", answer="fine again")
        world.check(ended.status == 0, f"a new session ended with {ended.status}: {last_lines(ended.text)}")
    if remembers:
        knows(world, "next")
    holds_a_plan(world)
    commit(world)


def kill_agent(world):
    killed(world, lambda session: os.kill(world.process_of_client(), signal.SIGKILL))


def kill_escrow(world):
    killed(world, lambda session: session.process.kill())


def interrupt(world):
    def twice(session):
        session.type(b"\x03")
        time.sleep(0.5)
        session.type(b"\x03")

    killed(world, twice, terminal=True, remembers=not world.client.forgets_interrupted)


def hang_up(world):
    killed(world, lambda session: session.close_terminal(), terminal=True)


SCENARIOS = {
    "edit": edit,
    "bare": bare,
    "talk": talk,
    "again": again,
    "token": token,
    "refresh": refresh,
    "plant": plant,
    "kill-agent": kill_agent,
    "kill-escrow": kill_escrow,
    "ctrl-c": interrupt,
    "hang-up": hang_up,
}


def nothing_to_see(client, scenario):
    """Why a scenario has nothing to look at."""
    if scenario in ("token", "refresh") and client.login is None:
        return "its logins are variables"
    if scenario == "refresh" and client.login.session is None:
        return "its refreshes cannot be led to the scripted model"
    return None


def one(place, client, scenario, user, keep):
    """Runs one scenario; what failed of it."""
    world = World(place["worlds"] / f"{client.name}-{scenario}-{user}", place["agents"], place["escrow"], client, user)
    try:
        SCENARIOS[scenario](world)
    except Failed as failure:
        world.failures.append(str(failure))
    finally:
        world.end(keep)
    return world.failures


def readable_by_others(path):
    """Whether an ordinary user can run a program."""
    command = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "--", "test", "-x", path]
    return subprocess.run(command, check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(description="Real coding agents in Escrow, with a scripted model.")
    parser.add_argument("--agent", action="append", choices=CLIENTS)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS)
    parser.add_argument("--user", action="append", choices=("root", "ordinary"))
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    agents = pathlib.Path(os.environ.get("AGENTS") or ROOT / "target" / "agents").resolve()
    escrow = pathlib.Path(os.environ.get("ESCROW_BIN") or ROOT / "target" / "debug" / "escrow").resolve()
    place = {"agents": agents, "escrow": escrow, "worlds": agents / "worlds"}
    users = arguments.user or (["root", "ordinary"] if os.geteuid() == 0 else ["ordinary"])
    if "root" in users and os.geteuid() != 0:
        sys.exit("scenarios.py: only root can run them as root")
    if "ordinary" in users and os.geteuid() == 0:
        for path in (escrow, agents / "bin" / "claude"):
            if not readable_by_others(path):
                sys.exit(
                    f"scenarios.py: an ordinary user cannot run '{path}': set ESCROW_BIN or AGENTS, or `--user root`"
                )

    ok, failed, none = 0, 0, 0
    for client in (CLIENTS[name] for name in arguments.agent or CLIENTS):
        version = (agents / f"{client.name}.version").read_text().strip()
        for scenario in arguments.scenario or SCENARIOS:
            reason = nothing_to_see(client, scenario)
            for user in users:
                began = time.monotonic()
                line = f"{client.name:9}{version:9}{scenario:12}{user:9}"
                if reason:
                    none += 1
                    print(f"{line}none    {reason}", flush=True)
                    continue
                try:
                    failures = one(place, client, scenario, user, arguments.keep)
                except Exception as error:
                    # A fault of these scripts is a failure too, and the others still run.
                    traceback.print_exc()
                    failures = [f"{type(error).__name__}: {explain(error)}"]
                took = f"{time.monotonic() - began:.1f} s"
                failed += bool(failures)
                ok += not failures
                print(f"{line}{'FAILED  ' + '; '.join(failures) if failures else 'ok'}  ({took})", flush=True)
    print(f"{ok} ok, {failed} failed, {none} with nothing to look at; {escrow}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
