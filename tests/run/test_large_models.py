"""Models too large to be run whole are checked node by node."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from tiny import model, normal, save

import onnxq
from onnxq.checking.nodes.check_nodes import check_nodes
from onnxq.checking.nodes.pieces import Operands
from onnxq.drafts import opening
from onnxq.recipe import Recipe

#: Weights on either side of a product, alone and stacked: shape of the input, product, shape of the weight.
PRODUCTS = {
    "right": ("b, 64", "MatMul (x, w)", (64, 32)),
    "left": ("64, b", "MatMul (w, x)", (32, 64)),
    "stacked": ("2, 3, b, 64", "MatMul (x, w)", (3, 64, 32)),
    "stacked on the left": ("3, 64, b", "MatMul (w, x)", (3, 32, 64)),
    "of rows": ("b, 64", "MatMul (x, w)", (3, 64, 32)),
    "of one vector": ("64", "MatMul (x, w)", (64, 32)),
    "transB": ("b, 64", "Gemm <transB = 1> (x, w)", (32, 64)),
    "transA": ("64, b", "Gemm <transA = 1> (x, w)", (64, 32)),
    "Gemm on the left": ("64, b", "Gemm (w, x)", (32, 64)),
    "all turned": ("b, 64", "Gemm <transA = 1, transB = 1> (w, x)", (64, 32)),
}


@pytest.fixture(autouse=True)
def every_model_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "WHOLE_MODEL_BYTES", 1)


def quantized(made: onnx.ModelProto, folder: Path, scheme: str, target: str) -> onnxq.Result:
    recipe = Recipe(scheme, keep_slow=True, effort="quick")
    return onnxq.quantize(save(made, folder), folder / "out.onnx", recipe, target=target)


@pytest.mark.parametrize("case", PRODUCTS)
def test_weights_are_checked_on_either_side(case: str, tmp_path: Path) -> None:
    dims, product, shape = PRODUCTS[case]
    made = model(f"g (float[{dims}] x) => (float[] y) {{ y = {product} }}", {"w": normal(*shape)})
    made.graph.output[0].type.tensor_type.ClearField("shape")
    check = quantized(made, tmp_path, "w8a16", "onnx").check
    assert check is not None and "1 of 1 nodes" in check.notes[0] and 35 < check.sqnr < 60


def test_products_of_halves_read_halves(tmp_path: Path) -> None:
    text = """g (float[b, 64] x) => (float[b, 64] y)
        { a = MatMul (x, u)  r = Relu (a)  c = MatMul (r, v)  s = Relu (c)  y = MatMul (s, w) }"""
    made = model(text, {name: normal(64, 64, seed=seed) for seed, name in enumerate("uvw")})
    check = quantized(made, tmp_path, "fp16", "onnx").check
    assert check is not None and "3 of 3 nodes" in check.notes[0] and check.sqnr > 60


def test_where_no_node_was_checked_nobody_knows_how_good_it_is(tmp_path: Path) -> None:
    text = "g (float[b, 8, 9, 9] x) => (float[b, 64, 7, 7] y) { y = Conv (x, w) }"
    result = quantized(model(text, {"w": normal(64, 8, 3, 3)}), tmp_path, "w8a16", "onnx")
    assert result.check is not None and math.isnan(result.check.sqnr)
    assert "nobody knows how good it is: too large to be run whole: 0 of 1" in result.unverified()


def test_products_that_were_joined_with_their_neighbours_are_not_looked_for(tmp_path: Path) -> None:
    text = "g (float[b, 64] x) => (float[b, 64] y) { a = MatMul (x, u)  r = Relu (a)  y = MatMul (r, v) }"
    constants = {"u": normal(64, 64), "v": normal(64, 64, seed=1)}
    check = quantized(model(text, constants), tmp_path, "bf16", "onnxq").check
    assert check is not None and "1 of 2 nodes" in check.notes[0] and check.sqnr > 40


def test_a_piece_of_the_float_model_that_does_not_run_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model("g (float[b, 64] x) => (float[b, 32] y) { y = MatMul (x, w) }", {"w": normal(64, 32)})
    path = save(made, tmp_path)
    monkeypatch.setattr(Operands, "activation", lambda *_: normal(1, 63))
    assert math.isnan(check_nodes(ir.load(path), path, [made.graph.node[0].name]).sqnr)
