"""Scripts of `tests/js` in node, with the packages of `ONNXQ_NODE_MODULES`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "js"
MODULES, PROGRAM = os.environ.get("ONNXQ_NODE_MODULES"), shutil.which("node")
needs_node = pytest.mark.skipif(PROGRAM is None or MODULES is None, reason="needs node, and ONNXQ_NODE_MODULES")


def node(script: str | Path, *arguments: object) -> Any:
    """What a script prints, as JSON; a path: any other script. The test is skipped where there is no node."""
    if PROGRAM is None or MODULES is None:
        pytest.skip("needs node, and ONNXQ_NODE_MODULES")
    command = [PROGRAM, str(SCRIPTS / script), *map(str, arguments)]
    environment = os.environ | {"NODE_PATH": MODULES}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
