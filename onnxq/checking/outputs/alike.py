"""What the saved file gives, where that has the shapes of what the float model gives."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onnxq.checking.outputs.counted import counted
from onnxq.errors import BadModel
from onnxq.model.load import load_written
from onnxq.runtime.own_files import model_files
from onnxq.runtime.session import Feed, Session
from onnxq.samples.trials import Trial


def outputs_alike(
    file: Path,
    names: Sequence[str],
    wanted: Sequence[Sequence[NDArray]],
    samples: Sequence[Trial],
    ignored: Collection[str],
    session: Session,
) -> Iterator[Sequence[NDArray]]:
    """What `session`, of the model in `file`, gives for each sample.

    Args:
        names, wanted: what the float model gives.
        ignored: outputs that are not looked at.

    Raises:
        BadModel: it does not run, or an output has another shape than the float model's.
    """
    for trial, expected in zip(samples, wanted, strict=True):
        got = session.run(trial.feed)
        for name, x, y in zip(names, expected, got, strict=True):
            is_array = isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
            if is_array and x.shape != y.shape and name not in ignored and not _is_counted(file, name):
                raise BadModel(
                    f"output '{name}' has the shape {list(y.shape)} where the float model's has {list(x.shape)}, "
                    f"on {trial.label} ({_shapes(trial.feed)})"
                )
        yield got


def _is_counted(file: Path, name: str) -> bool:
    """As `counted`; nothing is known of files in onnxruntime's own format."""
    return model_files.is_ort(file) or name in counted(load_written(file))


def _shapes(feed: Feed) -> str:
    return ", ".join(f"{name} {list(x.shape)}" for name, x in feed.items())
