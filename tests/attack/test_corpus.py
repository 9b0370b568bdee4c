"""What has done harm once does none again: each case of the corpus is answered in a sentence, and in time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from attack.every import CASES

_SCRIPT = """
import json, sys
from attack import cage, every
for name, outcome in zip(every.CASES, cage.run(list(every.CASES.values())), strict=True):
    print(json.dumps([name, outcome.__dict__]))
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, object]]:
    """Of a process of their own, which forks: the tests' has threads."""
    import json

    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests.parent)!r}]\n{_SCRIPT}"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_no_harm_is_done(name: str, outcomes: dict[str, dict[str, object]]) -> None:
    case, outcome = CASES[name], outcomes[name]
    assert not outcome["defect"], outcome
    assert outcome["code"] == case.code, outcome
    assert case.says in str(outcome["said"])
