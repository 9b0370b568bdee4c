"""Mixtures of experts: the operator of com.microsoft, and stacked weights of which each turn of a Loop takes one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import helper

import onnxq
from onnxq.cli import main
from onnxq.job import open_job
from onnxq.recipe import Recipe
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
EXPERTS, WIDTH, INNER = 4, 64, 96


def moe(
    folder: Path, *, third: bool = False, inner: int = INNER, dtype: type = np.float32, **attributes: object
) -> Path:
    fused = 2 if attributes.get("activation_type") == "swiglu" else 1
    shapes = {"up": (EXPERTS, fused * inner, WIDTH), "ub": (EXPERTS, fused * inner), "down": (EXPERTS, WIDTH, inner)}
    shapes |= {"db": (EXPERTS, WIDTH)} | ({"gate": (EXPERTS, inner, WIDTH)} if third else {})
    rng = np.random.default_rng(1)
    # Each expert has a size of its own, so that none may share its scales with another.
    sizes = np.float32([1, 3, 0.3, 2]).reshape(-1, 1, 1)
    arrays = {n: rng.standard_normal(s) / np.sqrt(s[-1]) * (sizes if len(s) == 3 else 1) for n, s in shapes.items()}
    word = {np.float16: "float16", np.float32: "float"}[dtype]
    text = f"g ({word}[B, S, {WIDTH}] x, {word}[T, {EXPERTS}] router) => ({word}[B, S, {WIDTH}] y) {{ y = Relu(x) }}"
    made = tiny.model(text, {name: array.astype(dtype) for name, array in arrays.items()})
    node = helper.make_node("MoE", ["x", "router", *shapes], ["y"], "moe", domain="com.microsoft", k=2, **attributes)
    made.graph.node[0].CopyFrom(node)
    return tiny.save(made, folder)


def feed(batch: int, length: int, dtype: type = np.float32) -> dict[str, NDArray]:
    rng = np.random.default_rng(length)
    shapes = {"x": (batch, length, WIDTH), "router": (batch * length, EXPERTS)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")
#: A scheme, an activation, whether routing weights are normalized, and dB that its bits have on normal numbers.
#: swiglu multiplies two products, whose noise adds up.
PACKED = [("w4a16", a, i % 2, 11 if a == "swiglu" else 14) for i, a in enumerate(ACTIVATIONS)]
PACKED += [("w8a16", a, (i + 1) % 2, 33) for i, a in enumerate(ACTIVATIONS)]
PACKED += [("int4", "relu", 1, 13), ("w8a8-dynamic", "relu", 0, 33)]


@pytest.mark.parametrize(("scheme", "activation", "normalize", "floor"), PACKED)
def test_experts_are_multiplied_packed(
    scheme: str, activation: str, normalize: int, floor: float, tmp_path: Path
) -> None:
    more = {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0} if activation == "swiglu" else {}
    path = moe(tmp_path, activation_type=activation, normalize_routing_weights=normalize, **more)
    plan = open_job(path, scheme).plan  # as it is: whether it pays off is not asked here
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe(scheme, min_sqnr=0.0), plan=plan)
    assert result.check is not None and result.check.kernels == {"QMoE": 1}
    in_float, quantized = Session(path), Session(result.output)
    for batch, length in ((1, 1), (3, 11)):
        (wanted,), (got,) = (session.run(feed(batch, length)) for session in (in_float, quantized))
        assert tiny.sqnr(wanted, got) > floor
    assert result.bytes_after < (0.32 if floor > 20 else 0.2) * result.bytes_before


def test_float16_experts(tmp_path: Path) -> None:
    path = moe(tmp_path, dtype=np.float16, activation_type="silu")
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w8a16", keep_slow=True))
    (wanted,), (got,) = (Session(p).run(feed(2, 7, np.float16)) for p in (path, result.output))
    assert tiny.sqnr(wanted, got) > 33


@pytest.mark.parametrize(
    ("options", "scheme", "target", "label", "reason"),
    [
        ({"inner": 72}, "w4a16", "ort-cpu", "uint4 b32 stored", "QMoE wants rows of whole blocks of 32"),
        ({}, "nf4", "ort-cpu", "nf4 b64 stored", "QMoE does not read nf4"),
        ({}, "w4a16", "onnx", "uint4 b32 stored", "the target has no QMoE"),
        ({}, "w4a16", "onnxq", "uint4 b32 stored", "the target has no QMoE"),
        ({}, "fp16", "ort-cpu", "float16 stored", "onnxruntime's processor kernels compute in float32"),
    ],
)
def test_where_no_kernel_takes_them_they_are_stored(
    options: dict[str, int], scheme: str, target: str, label: str, reason: str, tmp_path: Path
) -> None:
    path = moe(tmp_path, **options)
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe(scheme, keep_slow=True, min_sqnr=0.0), target=target)
    (choice,) = result.plan
    assert choice.label == label
    assert choice.reason.startswith(reason)
    (wanted,), (got,) = (Session(p).run(feed(2, 7)) for p in (path, result.output))
    assert tiny.sqnr(wanted, got) > 12
    assert result.bytes_after < 0.55 * result.bytes_before


def test_a_third_product_is_stored(tmp_path: Path) -> None:
    """onnxruntime's processors have no float kernel for it either, so the file is not run."""
    result = onnxq.quantize(moe(tmp_path, third=True), tmp_path / "q.onnx", "w8a16", check=False)
    (choice,) = result.plan
    assert (choice.label, choice.elements) == ("int8 b32 stored", 3 * EXPERTS * INNER * WIDTH)
    assert choice.reason.startswith("QMoE has no third product")


def test_they_count_as_weights(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["inspect", str(moe(tmp_path))], env={"COLUMNS": "200"})
    assert "2 of MoE" in result.stdout


STACKED = """g (float[N, 64] x) => (float[N, 64] y) {
  count = Constant<value_int = 4>()
  true = Constant<value = bool {1}>()
  y = Loop(count, true, x) <
    body = b (int64 turn, bool go, float[N, 64] state) => (bool on, float[N, 64] next) {
      on = Identity(go)  w = Gather(up, turn)  v = Gather(down, turn)
      h = MatMul(x, w)  r = Relu(h)  d = MatMul(r, v)  next = Add(state, d) }>
}"""


@pytest.mark.parametrize("target", ["ort-cpu", "onnx", "onnxq"])
@pytest.mark.parametrize(("scheme", "floor"), [("w4a16", 12), ("w8a8-dynamic", 33)])
def test_matrices_that_a_loop_looks_up_are_stored(scheme: str, floor: float, target: str, tmp_path: Path) -> None:
    sizes = np.float32([1, 3, 0.3, 2]).reshape(-1, 1, 1)
    arrays = {"up": tiny.normal(4, 64, 96) * sizes, "down": tiny.normal(4, 96, 64, seed=1) * sizes}
    path = tiny.save(tiny.model(STACKED, {n: a.astype(np.float32) for n, a in arrays.items()}), tmp_path)
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe(scheme, keep_slow=True, min_sqnr=0.0), target=target)
    assert len(result.plan.choices) == 2
    assert all(choice.block == 32 and choice.reason for choice in result.plan)
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    (wanted,), (got,) = (Session(p).run({"x": x}) for p in (path, result.output))
    assert tiny.sqnr(wanted, got) > floor
    assert result.bytes_after < 0.4 * result.bytes_before
    assert not any(t.data_type == onnx.TensorProto.FLOAT and np.prod(t.dims) > 4 * 96 * 64 / 16
                   for t in onnx.load(result.output).graph.initializer)  # fmt: skip
