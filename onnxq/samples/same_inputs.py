"""Whether models take the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq.errors import BadModel
from onnxq.runtime.session import Input
from onnxq.samples.source import inputs_of


def require_same_inputs(paths: Sequence[Path], loaded: Sequence[ir.Model]) -> None:
    """
    Raises:
        BadModel: one of the models takes other inputs than the first, or these in another type or shape.
    """
    first, *others = [{i.name: i for i in inputs_of(model)} for model in loaded]
    for path, found in zip(paths[1:], others, strict=True):
        if found.keys() != first.keys():
            takes = [", ".join(sorted(names)) or "nothing" for names in (first, found)]
        elif odd := sorted(name for name, i in first.items() if not _fit(i, found[name])):
            takes = [", ".join(_in_words(inputs[name]) for name in odd) for inputs in (first, found)]
        else:
            continue
        raise BadModel(
            f"the models cannot be compared: '{paths[0]}' takes {takes[0]} and '{path}' takes {takes[1]}; "
            "give two that take the same"
        )


def _fit(a: Input, b: Input) -> bool:
    """Whether there are arrays that are both, as far as the models say."""
    if a.dtype != b.dtype and np.dtype(np.object_) not in (a.dtype, b.dtype):
        return False
    if a.shape is None or b.shape is None:
        return True
    dims = zip(a.shape, b.shape, strict=False)
    return len(a.shape) == len(b.shape) and not any(
        isinstance(x, int) and isinstance(y, int) and x != y for x, y in dims
    )


def _in_words(i: Input) -> str:
    dims = "" if i.shape is None else f" [{', '.join('?' if dim is None else str(dim) for dim in i.shape)}]"
    return f"{i.name} {'' if i.dtype == np.object_ else i.dtype}{dims}".strip()
