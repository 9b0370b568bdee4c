"""What `--version` says besides the version."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from onnxq.errors import MissingRuntime, amount
from onnxq.runtime import native
from onnxq.runtime.machine import this_machine
from onnxq.runtime.ort import installed


def surroundings() -> Iterator[tuple[str, str]]:
    """(word, text) of the compiled library, the processor's instructions, the runtime and Python."""
    machine, path = this_machine(), native.path()
    yield "library", "none: pure Python" if path is None else f"interface {machine.library}, {path}"
    yield "isa", machine.isa
    yield "machine", f"{machine.cpu}, {amount(machine.cores, 'core')}"
    try:
        runtime = installed.require()
        yield "runtime", f"onnxruntime {runtime.__version__}, {', '.join(runtime.get_available_providers())}"
    except MissingRuntime as error:
        yield "runtime", str(error)
    yield "python", platform.python_version()
