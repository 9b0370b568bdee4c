"""A decoder like Llama as llama.cpp reads it: its names for tensors, its order of rows, its metadata.

llama.cpp turns numbers 2i and 2i + 1 of a head together. Where a graph turns i and i + size / 2, as Hugging Face's do,
rows of queries and keys are sorted, as its converter does it; codes and scales stay what they are.

Source: llama.cpp's gguf-py (`constants.py`) and `LlamaModel` of its converter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.encode_arrays import Tensor
from onnxq.checkpoints.gguf_file import Value
from onnxq.checkpoints.matching.put import taken
from onnxq.conversion.llama import reference, tokenizer
from onnxq.conversion.llama.decoder import Decoder, Part, find_decoder
from onnxq.conversion.llama.rope import Rope, find_ropes, sharpen
from onnxq.conversion.proof import decibels
from onnxq.conversion.restore import restore_all, restore_products
from onnxq.encoding.lazy import GivenTensor
from onnxq.errors import BadModel, OnnxqError
from onnxq.formats import QuantizedTensor
from onnxq.made_up.maker import Maker
from onnxq.made_up.scout import scout
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.output import write
from onnxq.pipeline import WHOLE_MODEL_BYTES
from onnxq.runtime.session import Session
from onnxq.samples.texts.tokenizer import FILE, read_json

#: How near llama.cpp's arithmetic has to come to the graph's, in dB: in float32, where there is float16, and where
#: only the packed weights fit into memory.
ALIKE, ALIKE_HALF, ALIKE_ROUNDED = 80.0, 40.0, 25.0
#: Places for words where nothing tells of how many.
CONTEXT = 2048
Named = tuple[str, Callable[[], Tensor]]


@dataclass(frozen=True)
class Llama:
    """What goes to a file.

    Attributes:
        said: how near its logits are to those of the graph, and why its tokenizer is not in the file.
        read: files beside the model that were read.
    """

    tensors: list[Named]
    metadata: dict[str, Value]
    said: tuple[str, ...]
    read: tuple[Path, ...] = ()


def as_llama(path: Path) -> Llama:
    """The decoder that the model at `path` is; what lies beside it tells of words and places.

    Raises:
        BadModel: it is none that llama.cpp's architecture "llama" computes; why.
    """
    model = load_model(path)
    restore_products(model, channels=True)
    restore_all(model)
    decoder, rope, by_halves, likeness = _proven(model, path)
    words: dict[str, Value] = {"tokenizer.ggml.model": "none"}
    why, beside = "no tokenizer.json lies beside the model", path.absolute().parent / FILE
    read: list[Path] = []
    if beside.is_file():
        read.append(beside)
        try:
            words, why = tokenizer.metadata(beside, decoder.head.size), ""
        except OnnxqError as error:
            why = str(error)
    config, more = _config(path)
    tensors = list(_tensors(decoder, rope, by_halves=by_halves))
    said = f"llama: {len(decoder.layers)} layers of width {decoder.width}; its arithmetic gives the graph's logits"
    parts = (f"{said}, {likeness:.0f} dB", *([f"without a tokenizer: {why}"] if why else []))
    return Llama(tensors, _metadata(decoder, rope, path.stem, config) | words, parts, (*read, *more))


def _proven(model: ir.Model, path: Path) -> tuple[Decoder, Rope, bool, float]:
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
        (decibels(wanted, made), decoder, rope, by_halves)
        for decoder, rope in decoders
        for by_halves in (True, False)
        if np.isfinite(made := reference.logits(decoder, rope, ids, by_halves=by_halves)).all()
    ]
    best = max(tried, key=lambda each: each[0], default=None)
    if best is None or best[0] < (ALIKE_ROUNDED if is_large else ALIKE_HALF if _has_halves(model) else ALIKE):
        near = "no numbers" if best is None else f"{best[0]:.0f} dB"
        raise BadModel(f"it has the parts of a Llama, but computes something else ({near})")
    return best[1], best[2], best[3], best[0]


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
    if len(rows) != ids.shape[1]:
        raise BadModel("its logits are not those of all words that it reads")
    return ids[0], rows


def _tensors(decoder: Decoder, rope: Rope, *, by_halves: bool) -> Iterator[Named]:
    table = functools.partial(_read, Part(decoder.embedding, slice(0, decoder.head.size)), None)
    yield "token_embd.weight", table
    head = functools.partial(_read, decoder.head, None)
    if not _are_equal(table(), head()):
        yield "output.weight", head
    if decoder.head.bias is not None:
        raise BadModel("its head adds a bias, which llama.cpp's has not")
    yield "output_norm.weight", functools.partial(_same, decoder.norm)
    if rope.factors is not None:
        yield "rope_freqs.weight", functools.partial(_same, rope.factors)
    for i, layer in enumerate(decoder.layers):
        at = f"blk.{i}"
        yield f"{at}.attn_norm.weight", functools.partial(_same, layer.attn_norm)
        for word, part in (("attn_q", layer.q), ("attn_k", layer.k), ("attn_v", layer.v), ("attn_output", layer.o)):
            turns = by_halves and word in ("attn_q", "attn_k")
            yield from _part(f"{at}.{word}", part, _order(part.size, rope.size) if turns else None)
        yield f"{at}.ffn_norm.weight", functools.partial(_same, layer.ffn_norm)
        for word, part in (("ffn_gate", layer.gate), ("ffn_up", layer.up), ("ffn_down", layer.down)):
            yield from _part(f"{at}.{word}", part, None)


def _same(x: NDArray) -> NDArray:
    return x


def _part(name: str, part: Part, order: NDArray[np.int64] | None) -> Iterator[Named]:
    yield f"{name}.weight", functools.partial(_read, part, order)
    if part.bias is not None:
        yield f"{name}.bias", functools.partial(_same, part.bias if order is None else part.bias[order])


def _order(rows: int, size: int) -> NDArray[np.int64]:
    """Which row of a matrix whose heads turn by halves each row of llama.cpp's is."""
    return np.arange(rows).reshape(-1, 2, size // 2).swapaxes(1, 2).reshape(-1)


def _read(part: Part, order: NDArray[np.int64] | None) -> Tensor:
    weight = part.weight
    tensor, is_turned = weight.tensor, weight.role.contraction == 0
    rows = np.arange(part.rows.start, part.rows.stop)
    rows = rows if order is None else rows[order]
    if isinstance(tensor, GivenTensor):
        given = (tensor.turned() if is_turned else tensor).given()
        return given if len(rows) == given.shape[0] and order is None else taken(given, rows)
    array = tensor.numpy().T if is_turned else tensor.numpy()
    made = array[rows]
    return made.astype(np.float32) if made.dtype == np.float64 else made


def _are_equal(a: Tensor, b: Tensor) -> bool:
    if isinstance(a, QuantizedTensor) and isinstance(b, QuantizedTensor):
        parts = ((a.codes, b.codes), (a.scales, b.scales), (a.zero_points, b.zero_points))
        same = a.format.name == b.format.name and a.granularity == b.granularity
        return same and all(x is y or (x is not None and y is not None and np.array_equal(x, y)) for x, y in parts)
    if isinstance(a, QuantizedTensor) or isinstance(b, QuantizedTensor):
        return False
    return np.array_equal(a, b)


def _config(path: Path) -> tuple[dict[str, Any], tuple[Path, ...]]:
    file = path.absolute().parent / "config.json"
    try:
        return (read_json(file), (file,)) if file.is_file() else ({}, ())
    except OnnxqError:
        return {}, (file,)


def _metadata(decoder: Decoder, rope: Rope, name: str, config: dict[str, Any]) -> dict[str, Value]:
    said = config.get("max_position_embeddings")
    places = said if isinstance(said, int) and 0 < said < 1 << 31 else rope.positions or CONTEXT
    numbers = {
        "vocab_size": decoder.head.size,
        "context_length": places,
        "embedding_length": decoder.width,
        "block_count": len(decoder.layers),
        "feed_forward_length": decoder.layers[0].down.inputs,
        "rope.dimension_count": rope.size,
        "attention.head_count": decoder.heads,
        "attention.head_count_kv": decoder.pairs,
        "attention.key_length": rope.size,
        "attention.value_length": rope.size,
    }
    return {
        "general.architecture": "llama",
        "general.name": name,
        **{f"llama.{key}": np.uint32(number) for key, number in numbers.items()},
        "llama.attention.layer_norm_rms_epsilon": np.float32(decoder.epsilon),
        "llama.rope.freq_base": np.float32(rope.base),
    }
