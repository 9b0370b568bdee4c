"""A weight as the tensors of other projects' checkpoints, and what their configuration says of it: one file a project.

A file defines `parts(name, q)`: the tensors of the layer `name` and what is said of it, None where the project has no
form of the same codes; `read_as(q)`, the weight that its reader finds there; `plain(name)`, what an array in floats is
called; and `metadata` and `config`, what the files and the folder say of all of them. What the user types is the file's
name with `-` for `_`.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def kinds() -> tuple[str, ...]:
    """The projects, as the user types them."""
    return tuple(each.name.replace("_", "-") for each in pkgutil.iter_modules(__path__) if each.name[0] != "_")


def get(kind: str) -> ModuleType:
    """The file of one of `kinds`."""
    return importlib.import_module(f"{__name__}.{kind.replace('-', '_')}")
