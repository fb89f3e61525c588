"""The SDK by itself, and a strategy of the examples under the conformance suite."""

import contextlib
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

from escrow_plugin import Strategy
from escrow_plugin.models import escape, unescape
from escrow_plugin.server import Server, _pass
from escrow_plugin.strategy import OPTIONAL, PARAMETERS, VERBS, methods, mistakes
from escrow_plugin.testing import check

EXAMPLES = Path(__file__).parents[3] / "examples" / "strategies" / "python"


def test_paths_survive_the_way_there_and_back():
    for path in ("plain", "a b", "ä/ö", "back\\slash", "new\nline", os.fsdecode(b"\xff\xfe")):
        assert unescape(escape(path)) == path


def test_methods_are_found_without_an_instance():
    class Half(Strategy):
        def __init__(self):
            raise AssertionError("an instance was made")

        def create(self, plan_id, resource):
            return None

    assert methods(Half) == ["create"]


def test_a_method_that_cannot_be_called_is_found_without_a_call():
    class Wrong(Strategy):
        def create(self, plan_id, resource, bucket):
            return None

        def read(ref, path):
            return b""

        def write(self, ref, path, /, content):
            return "added"

        def diff():
            return []

        def commit(self, ref, transaction=None, **more):
            return None

        @staticmethod
        def rollback(ref):
            return None

    found = mistakes(Wrong)
    assert [one.split()[0] for one in found] == ["Wrong.create", "Wrong.write", "Wrong.write", "Wrong.diff"], found
    assert "'bucket'" in found[0] and "plan_id, resource, area" in found[0]


def test_every_method_has_its_parameters():
    assert sorted(PARAMETERS) == sorted((*VERBS, *OPTIONAL))


def test_a_method_gets_what_it_names():
    assert _pass(lambda ref, message=None: (ref, message), {"ref": 1, "message": "m", "intent": 2}) == (1, "m")


def test_print_does_not_reach_the_protocol(tmp_path):
    (tmp_path / "noisy.py").write_text("print('hello')\nclass Noisy:\n    def create(self): print('x')\n")
    call = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n{"jsonrpc":"2.0","id":2,"method":"create","params":{}}\n'
    done = subprocess.run(
        [sys.executable, "-m", "escrow_plugin", "noisy:Noisy"], cwd=tmp_path, input=call, stdout=subprocess.PIPE, check=True
    )
    assert len(done.stdout.splitlines()) == 2 and b"hello" not in done.stdout


class Nothing(Strategy):
    """Has every method, and does nothing with what it is given."""


def _nothing(name):
    def method(self, **given):
        return {"read": b"", "write": "added", "diff": [], "fixture_contents": {}}.get(name)

    return method


for _name in (*VERBS, *OPTIONAL):
    setattr(Nothing, _name, _nothing(_name))
Nothing.__abstractmethods__ = frozenset()

REF = {"plan_id": "p", "resource_id": "r", "strategy_name": "s", "metadata": {"a": [1, None]}}
PARAMS = {
    "ref": REF, "area": "/nowhere", "path": "a\\x20b", "content": {"base64": "YQ=="}, "checkpoint_id": "c", "commit_id": "i",
    "changes": [{"path": "a", "kind": "added"}], "from": REF, "intent": {}, "keep": [], "plan_id": "p",
    "resource": {"id": "r", "name": "n", "type": "t", "location": {"kind": "opaque", "value": "x"}, "options": {}, "carved": []},
}


def _mutated(numbers):
    """A call, with bytes changed, added, removed, doubled or cut off."""
    method = numbers.choice(("initialize", "cancel", "none", *VERBS, *OPTIONAL))
    keys = numbers.sample(sorted(PARAMS), numbers.randrange(5))
    line = json.dumps({"jsonrpc": "2.0", "id": numbers.randrange(9), "method": method, "params": {key: PARAMS[key] for key in keys}})
    line = bytearray(line.encode())
    for _ in range(numbers.randrange(5)):
        at = numbers.randrange(len(line) + 1)
        kind = numbers.randrange(5)
        if kind == 0:
            line[at:at + 1] = bytes([numbers.randrange(256)])
        elif kind == 1:
            line[at:at] = numbers.choice((b"{", b"}", b'"', b"null", b"[[[[", b"\\", b"1e999", b"\xff"))
        elif kind == 2:
            del line[at:at + numbers.randrange(8)]
        elif kind == 3:
            line[at:at] = line[at // 2:at]
        else:
            del line[at:]
    return bytes(line).replace(b"\n", b" ")


def _expected(line):
    """The ids of the answers that a line gets."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return [None]
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        return [None]
    return [message["id"]] if "id" in message and message["method"] != "cancel" else []


def test_a_hundred_thousand_mutated_messages_are_answered_once_each():
    numbers = random.Random(0x5EED)
    lines = [b"[" * 100000, b'{"id":1,"method":"read","params":' + b'{"a":' * 5000]
    lines += [_mutated(numbers) for _ in range(100_000)]
    written = io.BytesIO()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        Server(Nothing, io.BytesIO(b"\n".join(lines) + b"\n"), written).serve()
    answers = [json.loads(line) for line in written.getvalue().splitlines()]
    for answer in answers:
        assert answer["jsonrpc"] == "2.0" and ("result" in answer) != ("error" in answer), answer
    asked = sorted(repr(one) for line in lines for one in _expected(line))
    assert sorted(repr(answer["id"]) for answer in answers) == asked
    assert sum("result" in answer for answer in answers) > 1000


def test_the_example_conforms():
    assert len(check("plain_directory:PlainDirectory", directory=str(EXAMPLES))) > 35
