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


def node(script: str | Path, *arguments: object) -> Any:
    """What a script prints, as JSON; a path: any other script. The test is skipped where there is no node."""
    modules, program = os.environ.get("ONNXQ_NODE_MODULES"), shutil.which("node")
    if program is None or modules is None:
        pytest.skip("needs node, and ONNXQ_NODE_MODULES")
    command = [program, str(SCRIPTS / script), *map(str, arguments)]
    environment = os.environ | {"NODE_PATH": modules}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
