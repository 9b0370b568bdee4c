"""How other tools store quantized layers: one file each, which recognises its layers by their tensors.

A file defines a function `layers(checkpoint)`, which yields a `stored.Layer` for each layer by the names of tensors and
what the configuration says; nothing is read before a layer is opened. Files are asked in the order of `ORDER`: what one
takes the next ones do not see.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.stored import Layer

#: The more telling names first; `floats` takes what is left.
ORDER = (
    "own",
    "linear4bit",
    "torchao",
    "gptq",
    "awq",
    "compressed_tensors",
    "bitsandbytes",
    "hqq",
    "mlx",
    "gguf",
    "floats",
)
FLOATS = "floats"
#: Of GGUF files, whose tensors may be blocks of codes: what others know by the same names are plain arrays.
OF_GGUF = ("own", "gguf")


def layers_of(checkpoint: Checkpoint) -> list[Layer]:
    """All layers that a checkpoint holds, each tensor in one of them at most.

    Raises:
        BadData: it is of a kind that is known, and not read.
    """
    taken: set[str] = set()
    found: list[Layer] = []
    for word in OF_GGUF if checkpoint.is_gguf else ORDER:
        for layer in _found(word, checkpoint):
            if taken.isdisjoint(layer.tensors):
                found.append(layer)
                taken |= set(layer.tensors)
    return found


def _found(word: str, checkpoint: Checkpoint) -> Iterator[Layer]:
    module = importlib.import_module(f"onnxq.checkpoints.schemes.{word}")
    yield from module.layers(checkpoint)
