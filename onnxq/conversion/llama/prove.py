"""Whether a graph computes what a Llama does: found by structure, and proven by its own numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.conversion.llama import reference
from onnxq.conversion.llama.decoder import Decoder, find_decoder
from onnxq.conversion.llama.rope import Rope, find_ropes, sharpen
from onnxq.conversion.restore import restore_weights
from onnxq.errors import BadModel, amount
from onnxq.job import WHOLE_MODEL_BYTES
from onnxq.made_up.maker import Maker
from onnxq.made_up.scout import scout
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.output import write
from onnxq.quality import sqnr
from onnxq.runtime.session import Session

#: How near a Llama's arithmetic has to come to the graph's, in dB: in float32, where there is float16, and where only
#: the packed weights fit into memory.
ALIKE, ALIKE_HALF, ALIKE_ROUNDED = 80.0, 40.0, 25.0


@dataclass(frozen=True)
class Found:
    """A decoder, and how it turns positions.

    Attributes:
        by_halves: whether pair i of a head is its numbers i and i + size / 2; else 2i and 2i + 1.
        likeness: of its logits to those of the graph, in dB.
    """

    decoder: Decoder
    rope: Rope
    by_halves: bool
    likeness: float

    @property
    def said(self) -> str:
        size = f"{amount(len(self.decoder.layers), 'layer')} of width {self.decoder.width}"
        return f"llama: {size}; its arithmetic gives the graph's logits, {self.likeness:.0f} dB"


def find_llama(path: Path) -> Found:
    """The decoder that the model at `path` is.

    Raises:
        BadModel: it is none; why.
    """
    model = load_model(path)
    restore_weights(model)
    return _proven(model, path)


def _proven(model: ir.Model, path: Path) -> Found:
    """What explains the numbers that the graph gives: structure alone does not tell how heads are turned."""
    ropes, problems = find_ropes(model), list[str]()
    if not ropes:
        raise BadModel("no constant of its graph tells how positions turn queries and keys")
    decoders: list[tuple[Decoder, Rope]] = []
    for rope in ropes:
        try:
            decoders.append((find_decoder(model, rope.size), rope))
            sharpen(rope)
        except BadModel as error:
            problems.append(str(error))
    if not decoders:
        raise BadModel(problems[0])
    # In floats, if it is not too large for that: kernels of packed weights may round activations.
    is_large = write.nbytes_to_write(model) > WHOLE_MODEL_BYTES
    ids, wanted = _run(model, Session(path) if is_large else scout(model), decoders[0][0])
    tried = [
        (sqnr(wanted, made), decoder, rope, by_halves)
        for decoder, rope in decoders
        for by_halves in (True, False)
        if np.isfinite(made := reference.logits(decoder, rope, ids, by_halves=by_halves)).all()
    ]
    best = max(tried, key=lambda each: each[0], default=None)
    least = ALIKE_ROUNDED if is_large else ALIKE_HALF if _has_halves(model) else ALIKE
    if best is None or best[0] < least:
        near = "no numbers" if best is None else f"{best[0]:.0f} dB"
        raise BadModel(f"it has the parts of a Llama, but computes something else ({near})")
    return Found(best[1], best[2], best[3], best[0])


def _has_halves(model: ir.Model) -> bool:
    halves = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    constants = (value for each in graph.graphs(model) for value in each.initializers.values())
    made = (value for node in graph.nodes(model) for value in node.outputs)
    return any(value.dtype in halves for value in (*constants, *made))


def _run(model: ir.Model, session: Session, decoder: Decoder) -> tuple[NDArray, NDArray]:
    """Ids of one text that begins at position 0, and what the graph makes of them, [length, words]."""
    maker = Maker(model, session)
    first = maker.first()
    made = None if first is None else next(iter(maker.kinds(first)), None)
    name = decoder.ids.name
    if made is None or name not in made.feed:
        raise BadModel("no inputs could be made up that show whether it computes what a Llama does")
    outputs = dict(zip(session.outputs, made.outputs, strict=True))
    ids = made.feed[name]
    fits = (x for x in outputs.values() if x.ndim >= 2 and x.shape[-1] == decoder.head.size)
    found = outputs.get(str(decoder.logits.name), next(fits, None))
    if ids.ndim != 2 or found is None or found.reshape(-1, decoder.head.size).shape[0] % len(ids):
        raise BadModel("its logits are not those of the words that it reads")
    rows = found.reshape(len(ids), -1, decoder.head.size)[0].astype(np.float32)
    if len(rows) != ids.shape[1] or not 0 <= ids.min() <= ids.max() < decoder.head.size:
        raise BadModel("its logits are not those of all words that it reads")
    if not np.isfinite(rows).all() or not np.ptp(rows):
        raise BadModel("its logits are all alike, or no numbers, which shows nothing")
    return ids[0], rows
