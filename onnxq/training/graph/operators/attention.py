"""Attention as exporters and onnxruntime's optimizer write it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxq.training.graph.operators import Call, operator


def _heads(x: Tensor, count: int) -> Tensor:
    """[batch, steps, heads·size] → [batch, heads, steps, size]."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _attended(q: Tensor, k: Tensor, v: Tensor, scale: float | None, bias: Tensor | None) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, of heads."""
    scale = scale or 1 / math.sqrt(q.shape[-1])
    scores = (q @ k.transpose(-1, -2)) * scale
    return torch.softmax(scores if bias is None else scores + bias, -1) @ v


def _hidden(seen: Tensor, like: Tensor) -> Tensor:
    """0 where something is seen, and far below zero elsewhere."""
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill(~seen, torch.finfo(like.dtype).min)


def _causal(rows: int, columns: int, like: Tensor) -> Tensor:
    """0 where a row may look, and far below zero where it may not; the last row sees all."""
    seen = torch.ones(rows, columns, dtype=torch.bool, device=like.device).tril(columns - rows)
    return _hidden(seen, like)


def _of_mask(call: Call, mask: Tensor | None, columns: int, like: Tensor) -> Tensor | None:
    """What onnxruntime's mask says of keys: [batch] lengths, or [batch, …, keys] of ones and zeros."""
    if mask is None:
        return None
    if mask.ndim == 1:
        if mask.numel() != len(like):
            raise call.refuse("a mask of starts and ends")
        mask = torch.arange(columns, device=mask.device) < mask.reshape(-1, 1)
    mask = mask.to(torch.bool)
    mask = mask[:, None, None, :] if mask.ndim == 2 else mask[:, None] if mask.ndim == 3 else mask
    return torch.where(mask[..., :columns], 0.0, call.get("mask_filter_value", -10000.0)).to(like.dtype)


def _added(call: Call, mask: Tensor | None, bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """What onnxruntime adds to scores: what hides keys, by the mask and by their order, and the bias."""
    found = _of_mask(call, mask, k.shape[2], q)
    if call.get("unidirectional", 0):
        causal = _causal(q.shape[2], k.shape[2], q)
        found = causal if found is None else torch.minimum(found, causal)
    return found if bias is None else bias if found is None else found + bias


@operator("Attention", domain="com.microsoft", constants=[3])
def contrib_attention(
    call: Call, x: Tensor, w: Tensor, b: Tensor | None = None, *more: Tensor | None
) -> tuple[Tensor, ...]:
    mask, past, bias = (*more, *[None] * 3)[:3]
    if call.get("do_rotary", 0) or any(each is not None for each in more[3:]):
        raise call.refuse("rotary embeddings or shared caches inside")
    found = x @ w if b is None else x @ w + b
    sizes = call.get("qkv_hidden_sizes") or [found.shape[-1] // 3] * 3
    q, k, v = (_heads(part, call.get("num_heads")) for part in torch.split(found, sizes, -1))
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    total = _added(call, mask, bias, q, k)
    return _joined(_attended(q, k, v, call.get("scale"), total)), torch.stack([k, v])


@operator("MultiHeadAttention", domain="com.microsoft", constants=[4])
def multi_head_attention(
    call: Call, q: Tensor, k: Tensor | None = None, v: Tensor | None = None, *more: Tensor | None
) -> tuple[Tensor, ...]:
    b, mask, bias, past_k, past_v = (*more, *[None] * 5)[:5]
    if k is None or v is None or q.ndim != 3:
        raise call.refuse("queries, keys and values packed in one")
    parts = [q, k, v]
    if b is not None:
        sizes = [q.shape[-1], q.shape[-1], b.numel() - 2 * q.shape[-1]]
        parts = [x if x.ndim == 4 else x + each for x, each in zip(parts, torch.split(b, sizes), strict=True)]
    q, k, v = (x if x.ndim == 4 else _heads(x, call.get("num_heads")) for x in parts)
    if past_k is not None and past_v is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    total = _added(call, mask, bias, q, k)
    return _joined(_attended(q, k, v, call.get("scale"), total)), k, v


@operator("RotaryEmbedding", domain="com.microsoft", constants=[1])
def rotary_embedding(call: Call, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if positions.numel() == 1:
        steps = x.shape[-2] if x.ndim == 4 else x.shape[1]
        positions = positions.reshape(1, 1) + torch.arange(steps, device=x.device).reshape(1, -1)
    size = 2 * cos.shape[-1]
    heads = x if x.ndim == 4 else _heads(x, call.get("num_heads") or x.shape[-1] // size)
    turned = _turned(heads, cos[positions][:, None], sin[positions][:, None], bool(call.get("interleaved", 0)))
    return turned if x.ndim == 4 else _joined(turned)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Pairs of numbers turned by an angle; numbers beyond the angles stay."""
    size = 2 * cos.shape[-1]
    rest, x = x[..., size:], x[..., :size]
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    first, second = a * cos - b * sin, a * sin + b * cos
    found = torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)
    return torch.cat([found, rest], -1)


@operator("GroupQueryAttention", domain="com.microsoft", constants=[5, 6])
def group_query_attention(
    call: Call, q: Tensor, k: Tensor | None = None, v: Tensor | None = None, *more: Tensor | None
) -> tuple[Tensor, ...]:
    past_k, past_v, lengths, _, cos, sin = (*more, *[None] * 6)[:6]
    heads, groups = call.get("num_heads"), call.get("kv_num_heads")
    if call.get("local_window_size", -1) > 0 or call.get("softcap", 0.0):
        raise call.refuse("a window, or a cap on scores")
    if k is None or v is None:
        size = q.shape[-1] // (heads + 2 * groups)
        q, k, v = torch.split(q, [heads * size, groups * size, groups * size], -1)
    q, k, v = _heads(q, heads), _heads(k, groups), _heads(v, groups)
    before = 0 if past_k is None else past_k.shape[2]
    if lengths is not None and len(lengths) > 1 and int(lengths.amin()) != int(lengths.amax()):
        raise call.refuse("rows of different lengths")
    if call.get("do_rotary", 0):
        assert cos is not None and sin is not None
        steps = torch.arange(before, before + q.shape[2], device=q.device).reshape(1, -1)
        angles = cos[steps][:, None], sin[steps][:, None]
        q, k = (_turned(x, *angles, bool(call.get("rotary_interleaved", 0))) for x in (q, k))
    if past_k is not None and past_v is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    all_k, all_v = (x.repeat_interleave(heads // groups, 1) for x in (k, v))
    found = _attended(q, all_k, all_v, call.get("scale"), _causal(q.shape[2], k.shape[2], q))
    return _joined(found), k, v


@operator("Attention", constants=[3])
def standard_attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *past: Tensor | None
) -> tuple[Tensor, ...]:
    if call.get("softcap", 0.0) or call.outputs > 3 or len(past) > 2:
        raise call.refuse("a cap on scores, scores as an output, or lengths of caches")
    flat = q.ndim == 3
    if flat:
        q, k, v = (_heads(x, call.get(f"{w}_num_heads")) for x, w in ((q, "q"), (k, "kv"), (v, "kv")))
    before = 0
    if past and past[0] is not None and past[1] is not None:
        before = past[0].shape[2]
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    times = q.shape[1] // k.shape[1]
    all_k, all_v = (x.repeat_interleave(times, 1) if times > 1 else x for x in (k, v))
    bias = mask
    if mask is not None and mask.dtype == torch.bool:
        bias = _hidden(mask, q)
    if call.get("is_causal", 0):
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(before)
        causal = _hidden(seen, q)
        bias = causal if bias is None else bias + causal
    found = _attended(q, all_k, all_v, call.get("scale"), bias)
    return (_joined(found) if flat else found), k, v
