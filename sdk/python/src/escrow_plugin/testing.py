"""Runs the conformance suite of Escrow against a strategy, for pytest.

    from escrow_plugin.testing import check

    def test_my_strategy_conforms():
        check("my_module:MyStrategy")

`escrow` must be on the search path, or be named by the environment variable ESCROW.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile


def check(strategy: str, *, directory: str | None = None) -> list[str]:
    """Fails with the promises that were broken; returns the names of those that were kept. Modules are searched in `directory`, the
    current one if left out."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [os.environ.get("ESCROW", "escrow"), "--json", "strategy", "check", strategy],
            cwd=directory,
            env={**os.environ, "ESCROW_HOME": os.path.join(home, "escrow")},
            stdout=subprocess.PIPE,
            check=False,
        )
    report = json.loads(done.stdout)
    if "error" in report:
        raise AssertionError(report["error"]["message"])
    broken = [f"{one['name']}: {one['problem']}" for one in report["checks"] if not one["passed"]]
    assert not broken, "\n".join(broken)
    return [one["name"] for one in report["checks"]]
