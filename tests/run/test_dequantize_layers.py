"""Float layers of onnxruntime's DynamicQuantizeLSTM, QAttention and QMoE."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray
from onnx import helper
from tiny import normal

from onnxq import Recipe, quantize
from onnxq.conversion.dequantize import dequantize
from onnxq.errors import BadModel
from onnxq.job import open_job
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
MICROSOFT = "com.microsoft"


def with_node(folder: Path, node: onnx.NodeProto, interface: str, constants: Mapping[str, NDArray]) -> Path:
    """A model of this node, and whatever `interface` says in front of it."""
    made = tiny.model(interface, constants)
    made.graph.node.append(node)
    return tiny.save(made, folder)


def codes_of(*shape: int, seed: int = 0, low: int = -127) -> NDArray:
    rng = np.random.default_rng(seed)
    return rng.integers(low, 128, shape).astype(np.int8) if low < 0 else rng.integers(0, 256, shape).astype(np.uint8)


def outputs(path: Path, feed: dict[str, NDArray]) -> list[NDArray]:
    return Session(path).run(feed)


def ops(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", ["channels", "tensor", "zero points"])
def test_an_lstm(tmp_path: Path, directions: int, kind: str) -> None:
    """Weights are the codes less zero points times scales; other inputs, attributes and outputs stay."""
    inputs, hidden, steps = 8, 16, 5
    unsigned = kind == "zero points"
    width = 1 if kind == "tensor" else 4 * hidden
    made: dict[str, NDArray] = {"b": normal(directions, 8 * hidden, seed=3)}
    wanted = []
    for seed, (name, rows) in enumerate((("w", inputs), ("r", hidden)), start=1):
        codes = codes_of(directions, rows, 4 * hidden, seed=seed, low=0 if unsigned else -127)
        scales = np.random.default_rng(seed).uniform(0.001, 0.004, (directions, width)).astype(np.float32)
        zeros = np.full((directions, width), 128 if unsigned else 0, codes.dtype)
        shape = (directions,) if kind == "tensor" else (directions, width)
        made |= {name: codes, f"{name}s": scales.reshape(shape), f"{name}z": zeros.reshape(shape)}
        floats = (codes.astype(np.float32) - zeros[:, None].astype(np.float32)) * scales[:, None]
        wanted.append(floats.swapaxes(1, 2))
    names = ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"]
    made |= {"h": normal(directions, 2, hidden, seed=5), "c": normal(directions, 2, hidden, seed=6)}
    direction = "bidirectional" if directions == 2 else "reverse"
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        names,
        ["y", "", "last"],
        "rnn",
        domain=MICROSOFT,
        hidden_size=hidden,
        direction=direction,
    )
    shape = f"float[{steps}, 2, {inputs}] x) => (float[S, D, B, H] y, float[D, B, H] last"
    path = with_node(tmp_path, node, f"g ({shape}) {{ }}", made)
    done = dequantize(path, tmp_path / "f.onnx")
    assert ops(done.output) == ["LSTM"] and done.check is not None and done.check.sqnr > 25
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(done.output).graph.initializer}
    read = onnx.load(done.output).graph.node[0].input
    for name, floats in zip(read[1:3], wanted, strict=True):
        np.testing.assert_array_equal(constants[name], floats)
    feed = {"x": normal(steps, 2, inputs, seed=7) * 3}
    for a, b in zip(outputs(path, feed), outputs(done.output, feed), strict=True):
        assert tiny.sqnr(b, a) > 25


def test_an_lstm_that_onnxq_wrote(tmp_path: Path) -> None:
    text = "g (float[T, 1, 32] x) => (float[T, D, 1, 64] y) { y = LSTM <hidden_size = 64> (x, w, r, b) }"
    weights = {"w": normal(1, 256, 32), "r": normal(1, 256, 64, seed=1), "b": normal(1, 512, seed=2)}
    model = tiny.save(tiny.model(text, weights), tmp_path)
    plan = open_job(model, "w8a8-dynamic").plan
    done = quantize(model, tmp_path / "q.onnx", Recipe("w8a8-dynamic", min_sqnr=0.0), plan=plan)
    assert "DynamicQuantizeLSTM" in ops(done.output)
    back = dequantize(done.output, tmp_path / "f.onnx")
    feed = {"x": normal(9, 1, 32, seed=3)}
    assert ops(back.output) == ["LSTM"]
    assert tiny.sqnr(outputs(model, feed)[0], outputs(back.output, feed)[0]) > 35


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_attention(tmp_path: Path, is_dynamic: bool) -> None:
    """Its input is what was rounded, in every run or with a fixed scale."""
    width, heads = 16, 4
    w = codes_of(width, 3 * width, seed=1)
    scales = np.random.default_rng(1).uniform(0.002, 0.004, 3 * width).astype(np.float32)
    made = {"w": w, "b": normal(3 * width, seed=2), "ws": scales, "wz": np.zeros(3 * width, np.int8)}
    if is_dynamic:
        before = "q, s, z = DynamicQuantizeLinear (x)"
    else:
        before = "q = QuantizeLinear (x, s, z)"
        made |= {"s": np.float32(0.04), "z": np.array(128, np.uint8)}
    names = ["q", "w", "b", "s", "ws", "mask", "z", "wz"]
    node = helper.make_node("QAttention", names, ["y"], "a", domain=MICROSOFT, num_heads=heads, unidirectional=1)
    text = f"g (float[2, 6, {width}] x, int32[2] mask) => (float[B, S, H] y) {{ {before} }}"
    path = with_node(tmp_path, node, text, made)
    done = dequantize(path, tmp_path / "f.onnx")
    assert "Attention" in ops(done.output) and not {"QAttention", "DynamicQuantizeLinear"} & set(ops(done.output))
    feed = {"x": normal(2, 6, width, seed=4) * 6, "mask": np.array([6, 4], np.int32)}
    assert tiny.sqnr(outputs(done.output, feed)[0], outputs(path, feed)[0]) > 30
    # By an independent reckoning.
    by_hand = helper.make_node("Attention", ["x", "f", "b", "mask"], ["y"], domain=MICROSOFT, num_heads=heads)
    by_hand.attribute.append(helper.make_attribute("unidirectional", 1))
    floats = w.astype(np.float32) * scales
    other = with_node(tmp_path, by_hand, text.replace(before, ""), {"f": floats, "b": made["b"]})
    clipped = feed | {"x": np.clip(feed["x"], -128 * 0.04, 127 * 0.04)} if not is_dynamic else feed
    assert tiny.sqnr(outputs(other, clipped)[0], outputs(done.output, feed)[0]) > (100 if is_dynamic else 65)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("block", "has_zeros", "is_routed"), [(16, True, False), (32, False, True), (0, False, False)])
def test_experts(tmp_path: Path, bits: int, block: int, has_zeros: bool, is_routed: bool) -> None:
    experts, width, inner, rng = 3, 32, 64, np.random.default_rng(0)
    made: dict[str, NDArray] = {}
    wanted = {}
    for name, n, k in (("u", inner, width), ("d", width, inner)):
        codes = rng.integers(0, 1 << bits, (experts, n, k)).astype(np.uint8)
        blocks = k // (block or k)
        scales = rng.uniform(0.01, 0.02, (experts, n, blocks)).astype(np.float32) * (1 if bits == 4 else 0.06)
        zeros = rng.integers(0, 1 << bits, (experts, n, blocks)).astype(np.uint8) if has_zeros else None
        middle = np.float32(1 << (bits - 1)) if zeros is None else np.repeat(zeros, k // blocks, 2).astype(np.float32)
        wanted[name] = (codes.astype(np.float32) - middle) * np.repeat(scales, k // blocks, 2)
        made[name] = codes if bits == 8 else codes[..., ::2] | (codes[..., 1::2] << 4)
        made[f"{name}s"] = scales if block else scales[..., 0]
        if zeros is not None:
            made[f"{name}z"] = zeros if bits == 8 else zeros[..., ::2] | (zeros[..., 1::2] << 4)
    z = ["uz", "dz"] if has_zeros else ["", ""]
    names = ["x", "p", "u", "us", "", "d", "ds", "", "", "", "", *z]
    names += ["", "weights"] if is_routed else []
    attributes = {"k": 2, "expert_weight_bits": bits, "activation_type": "silu"} | (
        {"block_size": block} if block else {}
    )
    node = helper.make_node("QMoE", names, ["y"], "experts", domain=MICROSOFT, **attributes)
    before = "weights = Softmax (p)" if is_routed else ""
    text = f"g (float[T, {width}] x, float[T, {experts}] p) => (float[T, {width}] y) {{ {before} }}"
    path = with_node(tmp_path, node, text, made)
    done = dequantize(path, tmp_path / "f.onnx")
    assert ops(done.output) == ["MoE"]
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(done.output).graph.initializer}
    read = onnx.load(done.output).graph.node[0].input
    np.testing.assert_allclose(constants[read[2]], wanted["u"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(constants[read[4]], wanted["d"], rtol=1e-6, atol=1e-7)
    feed = {"x": normal(7, width, seed=1), "p": normal(7, experts, seed=2)}
    assert tiny.sqnr(outputs(done.output, feed)[0], outputs(path, feed)[0]) > (
        30 if bits == 8 else 100 if block else 30
    )


def test_experts_with_other_routing_stay(tmp_path: Path) -> None:
    made = {"u": codes_of(2, 32, 32, low=0), "d": codes_of(2, 32, 32, low=0)}
    made |= {name: np.full((2, 32), 0.01, np.float32) for name in ("us", "ds")}
    names = ["x", "p", "u", "us", "", "d", "ds", *[""] * 7, "weights"]
    node = helper.make_node("QMoE", names, ["y"], "experts", domain=MICROSOFT, k=1, expert_weight_bits=8)
    text = "g (float[T, 32] x, float[T, 2] p, float[T, 2] weights) => (float[T, 32] y) { }"
    path = with_node(tmp_path, node, text, made)
    with pytest.raises(BadModel, match="has QMoE in a form that has none in floats"):
        dequantize(path, tmp_path / "f.onnx")
