"""Step 8 for a model too large to be run whole: single nodes of the file, run beside those of the float model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq.checking.models import Check, quantized_kernels
from onnxq.checking.nodes.pieces import Piece, sample
from onnxq.errors import BadModel, CheckFailed
from onnxq.model.load import load_written
from onnxq.model.types import infer_types
from onnxq.quality import Quality
from onnxq.runtime.session import THREADS, Session
from onnxq.runtime.timing import race

#: A small number of rows, to be timed, and a larger one.
ROWS = (1, 64)
#: Least SQNR of a single node's output; below it something is broken rather than coarse.
BROKEN_DB = 5.0


def check_nodes(
    prepared: ir.Model, quantized: Path, names: Sequence[str], *, threads: int = THREADS, seconds: float = 0.1
) -> Check:
    """Compare a model too large to be run whole: single nodes, each cut out of both models, on random activations.

    Args:
        prepared: the float model as it was before the rewrite.
        names: nodes of the prepared model that have weights; the largest ones of each shape are checked.

    Raises:
        CheckFailed: a node does not load or run, or gives something else.
    """
    saved = load_written(quantized)
    models = [(model, infer_types(model, guess=True)) for model in (prepared, saved)]
    quality: dict[str, float] = {}
    times = np.zeros(2)
    kernels: Counter[str] = Counter()
    rng = np.random.default_rng(0)
    for operands in sample(prepared, saved, names):
        name = operands.node.name or ""
        few, many = (operands.activation(models[0][1], rng, rows) for rows in ROWS)
        pieces = [Piece(model, types, operands, many) for model, types in models]
        try:
            in_float = Session(pieces[0].model, threads=threads)
            wanted = in_float.run(pieces[0].feed(many))
        except BadModel:  # that says nothing of the saved file
            continue
        try:
            sessions = [in_float, Session(pieces[1].model, threads=threads, profile=True)]
            found = Quality()
            found.add(in_float.outputs, wanted, sessions[1].run(pieces[1].feed(many)))
            times += race(sessions, [piece.feed(few) for piece in pieces], seconds=seconds).seconds
            kernels.update(quantized_kernels(sessions[1].kernels()))
        except BadModel as error:
            raise CheckFailed(f"node '{name}' of the saved model is broken: {error}") from None
        if found.outputs:
            quality[name] = found.sqnr
        if found.sqnr < BROKEN_DB:
            raise CheckFailed(f"node '{name}' of the saved model gives something else: {found.sqnr:.1f} dB")
    worst = min(quality.values(), default=math.nan)
    note = f"too large to be run whole: {len(quality)} of {len(names)} nodes were checked one by one"
    return Check(
        "random activations",
        sqnr=worst,
        contrast=worst,
        sqnr_plain=worst,
        outputs=quality,
        float_ms=1e3 * times[0],
        quantized_ms=1e3 * times[1],
        threads=threads,
        kernels=dict(kernels),
        whole=False,
        proves=False,
        notes=(note,),
    )
