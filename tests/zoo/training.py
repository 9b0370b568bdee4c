"""Trains shared models with the quantization in place and writes what their own metrics say, for docs/training.md.

python tests/zoo/training.py                 the table as it is stored
python tests/zoo/training.py --write NAME    carries a case out (charlm: about an hour of two cores) and stores its row

Every case has its seed and its data, none of which is evaluated on; scores are zoo.py's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray
from shared import SHARED
from zoo.zoo_models import load_zoo

import onnxq
from onnxq.training import Settings, train

ROWS = Path(__file__).with_name("training.json")


@dataclass(frozen=True)
class Case:
    """What is trained, on what, and what its score has to be.

    Attributes:
        samples: yields them; none of them is among those that are scored.
        at_least: the score that was asked for.
    """

    model: str
    scheme: str
    target: str
    samples: Callable[[], Iterator[dict[str, NDArray]]]
    at_least: float
    settings: Settings
    block: int | None = None
    words: str = ""
    options: dict[str, object] = field(default_factory=dict)


def windows() -> Iterator[dict[str, NDArray]]:
    """The training text of charlm."""
    with np.load(SHARED / "data" / "charlm" / "charlm_train.npz") as data:
        yield from ({"ids": row[None, :-1]} for row in data["ids"])


CASES = {
    "charlm": Case(
        "charlm",
        "uint2",
        "onnxq",
        windows,
        1.4450,
        Settings(
            learn=("weights", "scales", "norms", "biases"),
            steps=600,
            batch=4,
            rate=0.002,
            evaluate_every=50,
            bfloat16=True,
        ),
        block=32,
        words="charlm, uint2 b32, nll",
    ),
}


def carry_out(name: str, folder: Path) -> dict[str, object]:
    """The row of a case."""
    case, zoo = CASES[name], load_zoo()
    assert zoo is not None, "the shared models are not here"
    recipe = onnxq.Recipe(case.scheme, block_size=case.block)
    model = SHARED / "models" / zoo.MODELS[case.model].file
    scores = {"float": zoo.score(case.model, model)}
    samples = list(case.samples())
    plain = folder / "plain.onnx"
    onnxq.quantize(model, plain, recipe, target=case.target, data=samples, **case.options)
    scores["quantized"] = zoo.score(case.model, plain)
    start, trained = time.monotonic(), folder / "trained.onnx"
    result = train(model, trained, recipe, data=samples, settings=case.settings, target=case.target, **case.options)
    scores["trained"] = zoo.score(case.model, trained)
    minutes = (time.monotonic() - start) / 60
    return {"case": case.words, **scores, "wanted": case.at_least, "minutes": minutes, "notes": list(result.notes)}
