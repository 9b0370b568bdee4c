"""A decoder like Llama as llama.cpp reads it: its names for tensors, its order of rows, its metadata.

llama.cpp turns numbers 2i and 2i + 1 of a head together. Where a graph turns i and i + size / 2, as Hugging Face's do,
rows of queries and keys are sorted, as its converter does it; codes and scales stay what they are.

Source: llama.cpp's gguf-py (`constants.py`) and `LlamaModel` of its converter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.gguf_file import Value
from onnxq.conversion.llama import tokenizer
from onnxq.conversion.llama.decoder import Decoder
from onnxq.conversion.llama.prove import Found, find_llama
from onnxq.conversion.llama.rope import Rope
from onnxq.conversion.llama.rows import Named, embedding_and_head, part_of, vector
from onnxq.errors import BadModel, OnnxqError
from onnxq.model.weights import Weight
from onnxq.samples.texts.tokenizer import FILE, read_json

#: Places for words where nothing tells of how many.
CONTEXT = 2048


@dataclass(frozen=True)
class Llama:
    """What goes to a file.

    Attributes:
        said: how near its logits are to those of the graph, and why its tokenizer is not in the file.
        read: files beside the model that were read.
        sources: constants of the graph, and what reads them, by the tensors that have their numbers.
    """

    tensors: list[Named]
    metadata: dict[str, Value]
    said: tuple[str, ...]
    read: tuple[Path, ...] = ()
    sources: Mapping[str, tuple[ir.Value, Weight | None]] = field(default_factory=dict)


def as_llama(path: Path) -> Llama:
    """The decoder that the model at `path` is; what lies beside it tells of words and places.

    Raises:
        BadModel: it is none that llama.cpp's architecture "llama" computes; why.
    """
    found = find_llama(path)
    decoder = found.decoder
    if decoder.head.bias is not None:
        raise BadModel("its head adds a bias, which llama.cpp's has not")
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
    parts = (found.said, *([f"without a tokenizer: {why}"] if why else []))
    about = _metadata(decoder, found.rope, path.stem, config) | words
    return Llama(list(_tensors(found)), about, parts, (*read, *more), dict(_sources(decoder)))


def _tensors(found: Found) -> Iterator[Named]:
    decoder, rope = found.decoder, found.rope
    yield from embedding_and_head(decoder, "token_embd.weight", "output.weight")
    yield vector("output_norm.weight", decoder.norm)
    if rope.factors is not None:
        yield vector("rope_freqs.weight", rope.factors)
    for i, layer in enumerate(decoder.layers):
        at = f"blk.{i}"
        yield vector(f"{at}.attn_norm.weight", layer.attn_norm)
        for word, part in (("attn_q", layer.q), ("attn_k", layer.k), ("attn_v", layer.v), ("attn_output", layer.o)):
            turns = found.by_halves and word in ("attn_q", "attn_k")
            yield from part_of(f"{at}.{word}", part, _order(part.size, rope.size) if turns else None)
        yield vector(f"{at}.ffn_norm.weight", layer.ffn_norm)
        for word, part in (("ffn_gate", layer.gate), ("ffn_up", layer.up), ("ffn_down", layer.down)):
            yield from part_of(f"{at}.{word}", part, None)


def _sources(decoder: Decoder) -> Iterator[tuple[str, tuple[ir.Value, Weight | None]]]:
    """Without parts of constants that several tensors are of."""
    words = [f"blk.{i}.{word}_norm" for i in range(len(decoder.layers)) for word in ("attn", "ffn")]
    for name, value in zip([*words, "output_norm"], decoder.scales, strict=True):
        if value is not None:
            yield f"{name}.weight", (value, None)
    yield "token_embd.weight", (decoder.embedding.value, decoder.embedding)
    parts = {"output": decoder.head}
    for i, layer in enumerate(decoder.layers):
        found = {"attn_q": layer.q, "attn_k": layer.k, "attn_v": layer.v, "attn_output": layer.o}
        found |= {"ffn_gate": layer.gate, "ffn_up": layer.up, "ffn_down": layer.down}
        parts |= {f"blk.{i}.{word}": part for word, part in found.items()}
    for name, part in parts.items():
        if part.size == part.weight.shape[part.weight.role.channel]:
            yield f"{name}.weight", (part.weight.value, part.weight)


def _order(rows: int, size: int) -> NDArray[np.int64]:
    """Which row of a matrix whose heads turn by halves each row of llama.cpp's is."""
    return np.arange(rows).reshape(-1, 2, size // 2).swapaxes(1, 2).reshape(-1)


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
