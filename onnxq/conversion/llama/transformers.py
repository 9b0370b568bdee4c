"""A decoder like Llama as transformers has it: its names for tensors, heads turned by halves, and `config.json`.

Source: transformers' `LlamaForCausalLM` and `LlamaConfig`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.checkpoints.encode_arrays import Tensor
from onnxq.conversion.llama.decoder import Decoder, Layer, Part
from onnxq.conversion.llama.prove import Found, find_llama
from onnxq.conversion.llama.rows import Named, embedding_and_head, part_of, vector
from onnxq.errors import BadModel
from onnxq.formats import QuantizedTensor

_ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
_NETWORK = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def as_checkpoint(path: Path) -> tuple[list[Named], dict[str, Any], str]:
    """(tensors, what `config.json` says, what it was taken for) of the decoder that the model at `path` is.

    Raises:
        BadModel: it is none that `LlamaForCausalLM` computes; why.
    """
    found = find_llama(path)
    decoder = found.decoder
    if found.rope.factors is not None:
        raise BadModel("some of its frequencies are divided by factors of their own")
    if decoder.head.bias is not None:
        raise BadModel("its head adds a bias")
    tensors = list(_tensors(found))
    return tensors, _config(found, is_tied="lm_head.weight" not in dict(tensors)), found.said


def _tensors(found: Found) -> Iterator[Named]:
    decoder = found.decoder
    (name, table), *head = embedding_and_head(decoder, "model.embed_tokens.weight", "lm_head.weight")
    yield name, functools.partial(_floats, table)  # transformers has no tables of codes
    yield from head
    yield vector("model.norm.weight", decoder.norm)
    for i, layer in enumerate(decoder.layers):
        at = f"model.layers.{i}"
        yield vector(f"{at}.input_layernorm.weight", layer.attn_norm)
        yield vector(f"{at}.post_attention_layernorm.weight", layer.ffn_norm)
        for group, names in (("self_attn", _ATTENTION), ("mlp", _NETWORK)):
            for key, name in names.items():
                part: Part = getattr(layer, key)
                turns = not found.by_halves and key in ("q", "k")
                yield from part_of(f"{at}.{group}.{name}", part, _order(part.size, decoder.size) if turns else None)
                if part.bias is None and _is_biased(decoder, names):
                    yield vector(f"{at}.{group}.{name}.bias", np.zeros(part.size, np.float32))


def _floats(read: Callable[[], Tensor]) -> NDArray:
    tensor = read()
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor


def _is_biased(decoder: Decoder, names: dict[str, str]) -> bool:
    """Whether some part of attention, or of the network, adds a bias: all do, or none."""
    return any(_bias(layer, key) is not None for layer in decoder.layers for key in names)


def _bias(layer: Layer, key: str) -> NDArray | None:
    part: Part = getattr(layer, key)
    return part.bias


def _order(rows: int, size: int) -> NDArray[np.int64]:
    """Which row of a matrix whose heads turn neighbours each row of transformers' is."""
    return np.arange(rows).reshape(-1, size // 2, 2).swapaxes(1, 2).reshape(-1)


def _config(found: Found, *, is_tied: bool) -> dict[str, Any]:
    decoder, rope = found.decoder, found.rope
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": decoder.head.size,
        "hidden_size": decoder.width,
        "intermediate_size": decoder.layers[0].down.inputs,
        "num_hidden_layers": len(decoder.layers),
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.pairs,
        "head_dim": decoder.size,
        "rms_norm_eps": decoder.epsilon,
        "rope_theta": rope.base,
        "max_position_embeddings": rope.positions or 2048,
        "tie_word_embeddings": is_tied,
        "attention_bias": _is_biased(decoder, _ATTENTION),
        "mlp_bias": _is_biased(decoder, _NETWORK),
        "torch_dtype": "float32",
    }
