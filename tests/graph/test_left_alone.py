"""Passes that spell nodes for onnxruntime compute the same on odd models, and leave alone what they do not know."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from onnx import helper
from onnx_ir.passes.common import LiftConstantsToInitializersPass
from tiny import normal

from onnxq.passes.fusing.keep_in_float import MOST_PLACES, KeepInFloat
from onnxq.passes.fusing.part_gemms import PartGemms
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.runtime.session import Session

CODES = {"s": np.array(0.1, np.float32), "z": np.array(128, np.uint8)}
CONV = CODES | {"w": normal(4, 3, 3, 3)}
X = 3 * normal(2, 3, 8, 8, seed=1)
WRONG = helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, [9, 5, 7, 7])


def after(pass_: type[ir.passes.InPlacePass], proto: onnx.ModelProto) -> tuple[bool, ir.Model]:
    model = tiny.read(proto)
    LiftConstantsToInitializersPass(True, size_limit=0)(model)
    UniqueNames()(model)
    done = pass_()(model)
    return done.modified, done.model


def same(proto: onnx.ModelProto, model: ir.Model, x: np.ndarray) -> None:
    (wanted,), (got,) = (Session(each, optimize=False).run({"x": x}) for each in (ir.from_proto(proto), model))
    assert wanted.shape == got.shape and wanted.dtype == got.dtype
    np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), atol=1e-3)


def convolved(before: str, x: str = "float[2, 3, 8, 8] x", opset: int = 17, **more: np.ndarray) -> onnx.ModelProto:
    """A convolution of `d`, which was codes, by way of `r`; what it makes becomes codes."""
    body = f"{before}  c = Conv(r, w)  p = QuantizeLinear(c, t, z)  y = DequantizeLinear(p, s, z)"
    return tiny.model(f"g ({x}) => (y) {{ {body} }}", CONV | {"t": CODES["s"]} | more, opset=opset)


PAIR = "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  "
TURNED = f"{PAIR} r = Transpose<perm = [0, 1, 3, 2]>(d)"


def test_a_type_that_is_said_in_an_attribute_is_kept() -> None:
    """Since opset 23 floats need not be of the type of their scales."""
    pair = PAIR.replace("DequantizeLinear(", "DequantizeLinear<output_dtype = 10>(")
    halves = {"w": CONV["w"].astype(np.float16), "t": np.array(0.1, np.float16)}
    proto = convolved(f"{pair} r = Transpose<perm = [0, 1, 3, 2]>(d)", opset=23, **halves)
    changed, model = after(KeepInFloat, proto)
    assert changed
    same(proto, model, X)


@pytest.mark.parametrize("x", ["float[2, 3, 8, 8] x", "float[b, c, h, w2] x"])
def test_wrong_sizes_of_values_between_are_not_believed(x: str) -> None:
    """onnxruntime runs such a model, by what it finds out itself."""
    proto = convolved(TURNED, x)
    proto.graph.value_info.append(WRONG)
    changed, model = after(KeepInFloat, proto)
    assert changed == ("2, 3" in x)
    same(proto, model, X)


@pytest.mark.parametrize(
    ("before", "x", "more"),
    [
        (
            "d = DequantizeLinear(x, s, z)  r = Reshape(d, sizes)",
            "uint8[1, 500000000] x",
            {"sizes": np.array([2, 3, 8, 8])},
        ),
        (TURNED, "float[2, 3, 8, 8] x", {"z": np.zeros(3, np.uint8)}),
        (TURNED, "float[2, 3, 8, 8] x", {"s": np.zeros(0, np.float32)}),
    ],
    ids=["sizes beyond measure", "zero points of several", "no scale"],
)
def test_what_has_no_meaning_is_left(before: str, x: str, more: dict[str, np.ndarray]) -> None:
    assert not after(KeepInFloat, convolved(before, x, **more))[0]


def test_countless_groups_make_no_countless_scales() -> None:
    groups = convolved(TURNED.split("r =")[0])
    groups.graph.node[2].input[0] = "d"
    groups.graph.node[2].attribute.append(helper.make_attribute("group", 10**11))
    model = after(KeepInFloat, groups)[1]
    assert all(
        value.const_value.size <= MOST_PLACES for value in model.graph.initializers.values() if value.const_value
    )


def test_codes_of_four_bits() -> None:
    proto = convolved(
        "d = DequantizeLinear(x, s, z4)  r = Transpose<perm = [0, 1, 3, 2]>(d)", "int4[2, 3, 8, 8] x", 21,
        z4=np.array(1, ml_dtypes.int4),
    )  # fmt: skip
    changed, model = after(KeepInFloat, proto)
    assert changed and tiny.ops(model)[0] == "DequantizeLinear"


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("clip", ["Relu(c)", "Clip(c, low)", "Clip(c, , high)"])
def test_a_gemm_of_either_type(dtype: type, clip: str) -> None:
    word = np.dtype(dtype).name.replace("float32", "float")
    numbers = {"s": np.array(0.1, dtype), "low": np.array(-0.5, dtype), "high": np.array(0.5, dtype)}
    proto = tiny.model(
        f"g ({word}[4, 8] x) => ({word}[4, 5] y) {{ {PAIR} w = DequantizeLinear(codes, s, zero) c = Gemm(d, w) "
        f"r = {clip} y = Neg(r) }}",
        CODES | numbers | {"codes": np.arange(40, dtype=np.int8).reshape(8, 5), "zero": np.array(20, np.int8)},
        opset=21,
    )
    changed, model = after(PartGemms, proto)
    assert changed and not {"Relu", "Clip"} & set(tiny.ops(model))
    same(proto, model, (X.ravel()[:32].reshape(4, 8)).astype(dtype))


def test_bounds_that_are_attributes_are_not_lost() -> None:
    """As before opset 11."""
    proto = tiny.model(
        f"g (float[4, 8] x) => (float[4, 5] y) {{ {PAIR} w = DequantizeLinear(codes, s) b = DequantizeLinear(bias, s) "
        "c = Gemm(d, w, b) r = Clip<min = 0.0, max = 1.0>(c) y = Neg(r) }",
        CODES | {"codes": np.ones((8, 5), np.uint8), "bias": np.zeros(5, np.int32)},
        opset=10,
    )
    changed, model = after(PartGemms, proto)
    assert not changed
    same(proto, model, X.ravel()[:32].reshape(4, 8))
