"""The SDK by itself, and a strategy of the examples under the conformance suite."""

import os
import subprocess
import sys
from pathlib import Path

from escrow_plugin import Strategy
from escrow_plugin.models import escape, unescape
from escrow_plugin.server import _pass
from escrow_plugin.strategy import methods
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


def test_a_method_gets_what_it_names():
    assert _pass(lambda ref, message=None: (ref, message), {"ref": 1, "message": "m", "intent": 2}) == (1, "m")


def test_print_does_not_reach_the_protocol(tmp_path):
    (tmp_path / "noisy.py").write_text("print('hello')\nclass Noisy:\n    def create(self): print('x')\n")
    call = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n{"jsonrpc":"2.0","id":2,"method":"create","params":{}}\n'
    done = subprocess.run(
        [sys.executable, "-m", "escrow_plugin", "noisy:Noisy"], cwd=tmp_path, input=call, stdout=subprocess.PIPE, check=True
    )
    assert len(done.stdout.splitlines()) == 2 and b"hello" not in done.stdout


def test_the_example_conforms():
    assert len(check("plain_directory:PlainDirectory", directory=str(EXAMPLES))) > 35
