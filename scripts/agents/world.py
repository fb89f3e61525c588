"""A throw-away world of one scenario: a home, a state of Escrow, a git checkout as project, and a scripted model."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import termios
import time

from model import Authority, Model

# The ordinary user, as in the tests of the crates: an id without an entry in passwd.
USER = 54321
PATIENCE = 90
MARK = "ESCROW_AGENTS_WORLD"
QUESTION = "[k]eep"
# How the questions of clients begin that a preset answers.
ASKS = (
    "do you trust|trust this folder|safety check|running in bypass permissions mode|use this api key|log in with|"
    r"text style|\(Y\)es/\(N\)o"
)
# What clients ask a terminal, and what one says.
ANSWERS = (
    (b"\x1b[6n", b"\x1b[1;1R"),
    (b"\x1b[c", b"\x1b[?62;22c"),
    (b"\x1b]11;?", b"\x1b]11;rgb:0000/0000/0000\x1b\\"),
)


class Failed(Exception):
    """What did not hold, after which nothing else can be looked at."""


@dataclasses.dataclass
class Ended:
    status: int
    out: str
    err: str

    @property
    def text(self):
        return self.out + self.err


def plain(text):
    """What a terminal shows, without the places where."""
    return re.sub(r"\x1b(\[[0-9;?<>=]*[a-zA-Z]|\][^\x07\x1b]*(\x07|\x1b\\\\)|.)", " ", text).replace("\r", "\n")


def last_lines(text, count=4):
    lines = [line.strip() for line in plain(text).splitlines() if line.strip()]
    return " / ".join(lines[-count:])[-600:]


def started_before(pid):
    """When a process was started, in ticks."""
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


class World:
    def __init__(self, directory, agents, escrow, client, user):
        self.path = directory
        self.agents, self.escrow, self.client, self.user = agents, escrow, client, user
        if directory.exists():
            shutil.rmtree(directory)
        for name in ("home", "state", "project", "outside", "steps", "records"):
            (directory / name).mkdir(parents=True)
        self.home, self.project = directory / "home", directory / "project"
        self.authority = Authority(directory.parent / "authority")
        self.model = Model([{"text": "nothing yet"}], self.record("none"), authority=self.authority).start()
        self.failures = []
        self.marks = 0
        self.write_home(client.home(self.model.port))
        self.write_home({".bashrc": "# of the user\n"})
        (self.project / "notes.txt").write_text("notes\n")
        for words in (
            ["init", "-q"],
            ["config", "user.name", "Somebody"],
            ["config", "user.email", "somebody@example.com"],
            ["add", "."],
            ["commit", "-qm", "begin"],
        ):
            subprocess.run(["git", *words], cwd=self.project, env=self.environment(), check=True)
        self.give()

    def give(self):
        """Everything belongs to the user of this world."""
        if self.user == "ordinary" and os.geteuid() == 0:
            for top, directories, files in os.walk(self.path):
                for name in (".", *directories, *files):
                    os.lchown(os.path.join(top, name), USER, USER)

    def end(self, keep):
        self.model.shutdown()
        self.model.server_close()
        if not keep:
            # The kernel's own directory of an overlay has no mode.
            subprocess.run(["chmod", "-R", "u+rwX", str(self.path)], check=True)
            shutil.rmtree(self.path)

    # What is said of it

    def check(self, holds, failure):
        if not holds:
            self.failures.append(failure)
        return holds

    def need(self, holds, failure):
        if not holds:
            raise Failed(failure)

    # Files

    def record(self, name):
        return self.path / "records" / f"{name}.jsonl"

    def write_home(self, files):
        for path, text in files.items():
            file = self.home / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o600)

    def files_of_home(self):
        """Each file below the home directory, and what is in it."""
        return {
            str(file.relative_to(self.home)): os.readlink(file) if file.is_symlink() else file.read_bytes()
            for file in self.home.rglob("*")
            if file.is_symlink() or file.is_file()
        }

    def step(self, name, script):
        """The command of a step: a script of this world."""
        path = self.path / "steps" / f"{name}.sh"
        path.write_text(f"set -eu\n{script}")
        path.chmod(0o755)
        return f"bash {path}"

    def tell(self, word):
        """The line of a step that tells the model something."""
        return f"exec 3<>/dev/tcp/127.0.0.1/{self.model.port} && printf 'HEAD /{word} HTTP/1.0\\r\\n\\r\\n' >&3\n"

    def requests(self, name):
        record = self.record(name)
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []

    def model_was_sent(self, name, word):
        return any(word in json.dumps(request["body"]) for request in self.requests(name))

    # Processes

    def environment(self, more=None):
        path = f"{self.agents / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        terminal = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
        return {
            "PATH": path,
            "HOME": str(self.home),
            "ESCROW_HOME": str(self.path / "state"),
            **terminal,
            **(more or {}),
        }

    def as_user(self, words):
        if self.user == "ordinary" and os.geteuid() == 0:
            return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--", *words]
        return words

    def run(self, words, more=None, directory=None):
        """Runs a command outside, as the user of this world."""
        try:
            ended = subprocess.run(
                self.as_user(words),
                cwd=directory or self.project,
                env=self.environment(more),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired as error:
            out = b"".join(part for part in (error.stdout, error.stderr) if part).decode("utf-8", "replace")
            raise Failed(f"`{' '.join(words)[:200]}` did not end: {last_lines(out)}") from error
        return Ended(ended.returncode, ended.stdout.decode("utf-8", "replace"), ended.stderr.decode("utf-8", "replace"))

    def run_escrow(self, *words):
        return self.run([str(self.escrow), *words])

    def session_words(self, message, again=False, step="", permits=True, variables=None, front=()):
        """What is typed for a session of the client in Escrow."""
        client, port = self.client, self.model.port
        words, permitting = client.permits if permits else ([], {})
        variables = {**(client.variables(port) if variables is None else variables), **permitting}
        typed = [str(self.escrow), "run", "--network", f"own,allow:localhost:{port}", "-e", f"{MARK}={self.path}"]
        for name, value in variables.items():
            typed += ["-e", f"{name}={value}"]
        return [*typed, "--", client.name, *front, *words, *client.words(message, again, step)]

    def session(self, name, message, script=None, answer="that is all", **how):
        """A session in Escrow, recorded by this name: its step is the script; without one the model only answers."""
        step = self.step(name, script) if script is not None else ""
        self.give()
        turns = self.client.turns(step, answer) if script is not None else [{"text": answer}]
        self.model.follow(turns, self.record(name))
        return self.run(self.session_words(message, step=step, **how))

    def processes(self):
        """The processes of this world's runs, the oldest first."""
        mark = f"{MARK}={self.path}".encode()
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            # A process may end while it is looked at.
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((started_before(entry.name), int(entry.name)))
        return [pid for _, pid in sorted(found)]

    def process_of_client(self):
        """The client inside."""
        program = str(self.agents / self.client.name).encode() + b"/"
        for pid in self.processes():
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/{pid}/exe").encode() + b"/"
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                names = [os.path.realpath(word) + b"/" for word in words[:3]]
                if any(name.startswith(program) for name in (link, *names)):
                    return pid
        raise Failed("the client is not among the processes of the run")


def wait_until(what, holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {PATIENCE} s")
        time.sleep(0.1)


class Running:
    """A session that goes on while something happens to it: behind pipes, or on a terminal of its own."""

    def __init__(self, world, name, message, script, terminal=False, permits=True):
        self.world, self.name, self.output = world, name, b""
        # The step tells the model that it began, since nothing else of it is seen outside.
        step = world.step(name, f"{script}{world.tell('began')}{'sleep 300' if message else ''}\n")
        world.give()
        world.model.follow(world.client.turns(step, "that is all"), world.record(name))
        words = world.as_user(world.session_words(message, step=step, permits=permits))
        common = {"cwd": world.project, "env": world.environment(), "start_new_session": True}
        if terminal:
            self.terminal, inner = pty.openpty()
            fcntl.ioctl(inner, termios.TIOCSWINSZ, b"\x28\x00\x78\x00\x00\x00\x00\x00")
            self.process = subprocess.Popen(
                words,
                stdin=inner,
                stdout=inner,
                stderr=inner,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                **common,
            )
            os.close(inner)
        else:
            self.terminal = None
            self.file = open(world.path / "outside" / f"{name}.out", "w+b")
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=self.file, stderr=subprocess.STDOUT, **common
            )

    def has_begun(self):
        """Whether the step told the model that it runs."""
        return any(one["path"] == "/began" for one in self.world.requests(self.name))

    def is_over(self):
        """Whether Escrow has ended, or asks what becomes of the changes."""
        return self.process.poll() is not None or QUESTION.encode() in self.output

    def began(self):
        self.wait("the step", self.has_begun)

    def read(self):
        """Takes what the terminal shows, and answers for it what a client asks it."""
        while self.terminal is not None and select.select([self.terminal], [], [], 0)[0]:
            try:
                shown = os.read(self.terminal, 65536)
            except OSError:
                # The other side is closed.
                return
            self.output += shown
            self.read_at = time.monotonic()
            for question, answer in ANSWERS:
                if question in shown:
                    self.type(answer)

    def settled(self):
        """Waits until the terminal shows something, and then nothing new for a while."""
        self.read_at = time.monotonic()
        self.wait("a quiet screen", lambda: self.output and time.monotonic() - self.read_at > 3)

    def shown(self):
        if self.terminal is None:
            self.file.seek(0)
            return self.file.read().decode("utf-8", "replace")
        self.read()
        return self.output.decode("utf-8", "replace")

    def wait(self, what, holds):
        def now():
            self.read()
            if holds():
                return True
            if self.process.poll() is not None:
                raise Failed(f"{what}: the run ended before, with {self.process.returncode}")
            return False

        try:
            wait_until(what, now)
        except Failed as failure:
            self.stop()
            raise Failed(f"{failure}: {last_lines(self.shown())}") from failure

    def type(self, keys):
        os.write(self.terminal, keys)

    def say(self, words, happened):
        """Types a line when the client waits for one; again, where it did not listen yet."""
        for _ in range(3):
            self.settled()
            self.type(words.encode())
            self.settled()
            shown = " ".join(plain(self.shown()).split())
            if asked := re.search(ASKS, shown, re.I):
                self.stop()
                raise Failed(f"it asks: {shown[asked.start() :][:80]}")
            self.type(b"\r")
            end = time.monotonic() + PATIENCE / 6
            while time.monotonic() < end:
                self.read()
                if happened():
                    return
                time.sleep(0.1)
        self.stop()
        raise Failed(f"'{words}' had no effect: {last_lines(self.shown())}")

    def close_terminal(self):
        os.close(self.terminal)
        self.terminal = None
        self.file = open(os.devnull, "rb")

    def ended(self):
        """Waits for the end of Escrow, and keeps the changes if it asks on the terminal."""
        asked = 0

        def now():
            nonlocal asked
            self.read()
            questions = self.output.count(QUESTION.encode())
            if questions > asked and self.process.poll() is None and self.terminal is not None:
                asked = questions
                self.type(b"k\r")
            return self.process.poll() is not None

        try:
            wait_until("Escrow ended", now)
        finally:
            self.stop()
        return self.process.returncode

    def stop(self):
        """Ends Escrow, if it has not ended by itself."""
        if self.process.poll() is None:
            for pid in [self.process.pid, *self.world.processes()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()


def explain(error):
    return "".join(str(error).splitlines()) or type(error).__name__
