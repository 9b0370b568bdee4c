"""Makes the reference of the Python API: `python docs/reference.py FOLDER`, with `pip install '.[docs]'`.

What it makes is not kept here: it follows from the docstrings, which tests/graph/test_reference.py looks at one by one.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from pathlib import Path

#: The modules whose names are promised: what they do not list in `__all__` or define themselves is not.
MODULES = (
    "onnxq",
    "onnxq.formats",
    "onnxq.layouts",
    "onnxq.algorithms",
    "onnxq.analysis",
    "onnxq.analysis.theory",
    "onnxq.analysis.synthetic",
    "onnxq.analysis.benchmarks.plot",
    "onnxq.fake_quant",
    "onnxq.collectors",
    "onnxq.checkpoints.encode_arrays",
    "onnxq.checkpoints.gguf_file",
)


def write(folder: Path) -> None:
    """One page a module, and an index."""
    import pdoc

    for module in map(importlib.import_module, MODULES):
        # Names that are imported when they are asked for are asked for.
        vars(module).update({name: getattr(module, name) for name in getattr(module, "__all__", ())})
    # A package stands for all that lies in it, unless that is taken out again.
    specs = [spec for name in MODULES for spec in (name, rf"!{re.escape(name)}\..+")]
    folder = folder.absolute()
    with contextlib.chdir(folder.parent):  # from a checkout pdoc would ask which of two packages is meant
        pdoc.pdoc(*specs, output_directory=folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
