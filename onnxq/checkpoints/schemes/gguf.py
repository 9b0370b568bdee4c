"""GGUF: tensors NAME.weight in ggml's blocks, called as llama.cpp calls them (blk.0.attn_q, token_embd …).

For the architectures of `ROTATED` the rows of attn_q and attn_k are in another order than in the model that was
converted: of each head, first and second halves take turns. `Stored.rows` undoes that where the model wants it.

Source: llama.cpp's gguf-py (`tensor_mapping.py`) and `LlamaModel.permute` in its converter.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from onnxq import formats
from onnxq.checkpoints import own_file
from onnxq.checkpoints.checkpoint import Checkpoint
from onnxq.checkpoints.gguf_file import Gguf
from onnxq.checkpoints.stored import Layer, Stored, key, names_with
from onnxq.errors import BadModel
from onnxq.formats import Granularity, QuantizedTensor

ROTATED = ("llama", "llama4", "deci", "minicpm", "arctic", "granite", "granitemoe", "refact", "smallthinker")
#: What `onnxq convert` calls the architecture of graphs that llama.cpp does not run, with the tensors' names in them.
OWN = "onnx"
#: llama.cpp's names, and those of Hugging Face's llama, for most decoders alike.
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
WHOLE = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}


def layers(checkpoint: Checkpoint) -> Iterator[Layer]:
    """Matrices called weight."""
    if not checkpoint.is_gguf:
        return
    named = {key(name, "weight"): name for name in names_with(checkpoint, "weight")}
    if checkpoint.metadata.get("general.architecture") == OWN:
        named |= {source: source for source in checkpoint if source not in named and not source.endswith(".bias")}
    told, noted = set(own_file.products_of(checkpoint.metadata)), own_file.names_of(checkpoint.metadata)
    for source, name in named.items():
        file = checkpoint.shards[source]
        shape, format = file.outline(source) if isinstance(file, Gguf) else ((), None)
        is_matrix = source != name or format is not None or source in told
        if isinstance(file, Gguf) and len(shape) == 2 and is_matrix:
            tensors = (source, key(name, "bias"))
            known = (noted[source].removesuffix(".weight"),) if source in noted else ()
            read = functools.partial(_open, checkpoint, file, name, source)
            yield Layer(name, "gguf", tensors, read, (*known, *aliases(name)))


def is_foreign(checkpoint: Checkpoint) -> bool:
    """Whether it is a file as llama.cpp has them, whose head is the table of words where it names none."""
    return checkpoint.is_gguf and checkpoint.metadata.get("general.architecture") != OWN


def may_lie_turned(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a tensor may be a matrix of a product, [outputs, inputs], or lie as in the graph, which files of our own
    did not say once."""
    is_own = checkpoint.is_gguf and checkpoint.metadata.get("general.architecture") == OWN
    return is_own and own_file.PRODUCTS not in checkpoint.metadata and len(checkpoint[name].shape) == 2


def aliases(name: str) -> tuple[str, ...]:
    """What the layer is called in the model that was converted, most likely."""
    found = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    if found and found[2] in NAMES:
        return (f"model.layers.{found[1]}.{NAMES[found[2]]}",)
    return (WHOLE[name],) if name in WHOLE else ()


def _open(checkpoint: Checkpoint, file: Gguf, name: str, source: str) -> Stored:
    (n, k), format = file.outline(source)
    bias = checkpoint.get(key(name, "bias"))
    found = (key(name, "bias"), bias) if isinstance(bias, np.ndarray) else None
    rows = _rows(checkpoint, name, n)
    if format is None or format.scale_type is None:
        is_float = format is not None or not file.is_foreign(source)

        def floats() -> NDArray:
            made = file[source]
            return made.dequantize() if isinstance(made, QuantizedTensor) else made

        return Stored(source, (n, k), None, Granularity(), floats, False, found, is_float=is_float, rows=rows)
    granularity = Granularity(1, format.default_block)
    half = format.scale_type == np.float16
    return Stored(source, (n, k), format, granularity, lambda: _checked(source, file[source]), half, found, rows=rows)


def _checked(source: str, found: QuantizedTensor | NDArray) -> QuantizedTensor:
    """The weight, if its scales are numbers."""
    assert isinstance(found, QuantizedTensor)
    for part in (found.scales, found.zero_points):
        if part is not None and not np.isfinite(part.astype(np.float32)).all():
            raise formats.in_weight(BadModel("holds scales that are not finite"), source)
    return found


def _rows(checkpoint: Checkpoint, name: str, n: int) -> NDArray[np.int64] | None:
    """Where each row of the converted model's weight lies here, if not in its place.

    Raises:
        BadModel: rows of its kind lie elsewhere, but the file does not say of how many heads they are.
    """
    which = name.rsplit(".", 1)[-1]
    architecture = checkpoint.metadata.get("general.architecture")
    if architecture not in ROTATED or which not in ("attn_q", "attn_k"):
        return None
    heads = checkpoint.metadata.get(f"{architecture}.attention.head_count")
    if which == "attn_k":
        heads = checkpoint.metadata.get(f"{architecture}.attention.head_count_kv", heads)
    if type(heads) is not int or heads < 1 or n % (2 * heads):
        raise BadModel(f"'{name}': its {n} rows lie by heads, but the file says no number of them that fits")
    return np.arange(n).reshape(heads, n // heads // 2, 2).swapaxes(1, 2).reshape(-1)
