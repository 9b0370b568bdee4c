"""A module that libraries below import and hardly ever need is read when something in it is asked for.

onnx_ir imports sympy for arithmetic with symbolic dimensions, of which onnxq does none; reading it takes nearly half
of what a command needs to begin.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

#: sympy, and the one module that looks names up in it when it is imported.
POSTPONED = {"sympy", "onnx_ir._symbolic_shapes"}


class _Postponing:
    """A finder of modules (`sys.meta_path`), asked before all others."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module as it is found anyhow, but carried out at its first attribute."""
        spec = PathFinder.find_spec(name, path, target) if name in POSTPONED else None
        if spec is None or spec.loader is None:
            return None
        spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def postpone() -> None:
    """From here on, in this process. For processes that are ours: whose Python it is decides for itself otherwise."""
    if _Postponing not in sys.meta_path:
        sys.meta_path.insert(0, _Postponing)
