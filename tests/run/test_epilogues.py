"""What is done to the sums of a dense product becomes part of its node: however it is spelled, where it may."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq.conversion.dequantize import dequantize
from onnxq.runtime import native
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")

NUMBERS = """root2 = Constant <value = float {1.41421356}> ()  half = Constant <value = float {0.5}> ()
    one = Constant <value = float {1.0}> ()  three = Constant <value = float {3.0}> ()
    small = Constant <value = float {0.044715}> ()  factor = Constant <value = float {0.79788456}> ()
    other_factor = Constant <value = float {0.7}> ()  six = Constant <value = float {6.0}> ()"""
#: Between p = x · w and h: the activation that it becomes, and what else.
SPELLINGS = {
    "nothing": ("h = Identity (p)", "", False, ""),
    "bias": ("h = Add (b, p)", "", True, ""),
    "bias, relu": ("s = Add (p, b)  h = Relu (s)", "relu", True, ""),
    "gelu": ("h = Gelu (p)", "gelu", False, ""),
    "gelu by erf": (
        """s = Add (b, p)  d = Div (s, root2)  e = Erf (d)  f = Add (e, one)  m = Mul (s, f)
        h = Mul (m, half)""",
        "gelu",
        True,
        "",
    ),
    "gelu by erf, halved first": (
        """d = Div (p, root2)  e = Erf (d)  f = Add (one, e)  n = Mul (p, half)
        h = Mul (n, f)""",
        "gelu",
        False,
        "",
    ),
    "gelu by tanh": (
        """c = Pow (p, three)  q = Mul (c, small)  a = Add (p, q)  u = Mul (a, factor)  t = Tanh (u)
        f = Add (t, one)  m = Mul (p, f)  h = Mul (m, half)""",
        "gelu_tanh",
        False,
        "",
    ),
    "gelu by tanh, multiplied out": (
        """c = Mul (p, p)  q = Mul (c, small)  a = Add (q, one)  w1 = Mul (p, factor)
        u = Mul (w1, a)  t = Tanh (u)  f = Add (t, one)  n = Mul (p, half)  h = Mul (n, f)""",
        "gelu_tanh",
        False,
        "",
    ),
    "silu": ("s = Add (p, b)  g = Sigmoid (s)  h = Mul (s, g)", "silu", True, ""),
    "silu by exponentials, which overflow": (
        "e = Exp (p)  f = Add (e, one)  n = Mul (p, e)  h = Div (n, f)",
        "silu",
        False,
        "",
    ),
    "relu6, which is a relu up to six": (
        "s = Relu (p)  d = Sub (p, six)  t = Relu (d)  h = Sub (s, t)",
        "",
        False,
        "",
    ),
    "gate": ("g = Sigmoid (p)  s = Mul (g, p)  h = Mul (s, r)", "silu", False, "times"),
    "residual": ("s = Add (p, b)  h = Add (r, s)", "", True, "plus"),
    "all": ("s = Add (p, b)  a = Gelu (s)  h = Add (a, r)", "gelu", True, "plus"),
    "all, one row for all": ("s = Add (p, b)  a = Gelu (s)  h = Add (a, row)", "gelu", True, "plus"),
    "FastGelu": ("h = com.microsoft.FastGelu (p, b)", "gelu_tanh", True, ""),
    "FastGelu behind a bias": ("s = Add (p, b)  h = com.microsoft.FastGelu (s)", "gelu_tanh", True, ""),
    "another factor": (
        """c = Pow (p, three)  q = Mul (c, small)  a = Add (p, q)  u = Mul (a, other_factor)  t = Tanh (u)
        f = Add (t, one)  m = Mul (p, f)  h = Mul (m, half)""",
        "",
        False,
        "",
    ),
    "sums that others read": ("s = Add (p, b)  a = Relu (s)  h = Sub (a, s)", "", True, ""),
    "products that others read": ("s = Add (p, b)  a = Relu (s)  h = Sub (a, p)", "", False, ""),
    "itself": ("s = Mul (p, p)  h = Relu (s)", "", False, ""),
}


def write(folder: Path, body: str) -> Path:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[B, S, 24] x, float[B, S, 40] r, float[1, 40] row) => (float[B, S, 16] y) {{
            {NUMBERS}  p = MatMul (x, w)  {body}  y = MatMul (h, v) }}"""
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (24, 40)), ("v", (40, 16)), ("b", (40,))):
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        )
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    onnx.save(model, folder / "float.onnx")
    return folder / "float.onnx"


def feed(batch: int, rows: int) -> dict[str, NDArray]:
    rng = np.random.default_rng(rows)
    shapes = {"x": (batch, rows, 24), "r": (batch, rows, 40), "row": (1, 40)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def agrees(path: Path, made: Path) -> None:
    """With the library, and by the bodies without it."""
    for batch, rows in ((1, 1), (2, 19)):
        x = feed(batch, rows)
        wanted = Session(path).run(x)[0]
        bodies = ort.InferenceSession(made, providers=["CPUExecutionProvider"]).run(None, x)[0]
        for y in (bodies, *([Session(made).run(x)[0]] if native.path() is not None else [])):
            assert np.linalg.norm(y - wanted) <= 0.02 * np.linalg.norm(wanted)


def first(made: Path) -> tuple[str, bool, str]:
    """Of the product by w: its activation, whether it has a bias, and what it does with another value."""
    (node,) = [each for each in onnx.load(made).graph.node if each.input[0] == "x"]
    words = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    has_bias, has_other = (len(node.input) > i and node.input[i] != "" for i in (2, 3))
    return words.get("activation", b"").decode(), has_bias, words["combine"].decode() if has_other else ""


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(spelling: str, tmp_path: Path) -> None:
    body, *wanted = SPELLINGS[spelling]
    path, made = write(tmp_path, body), tmp_path / "made.onnx"
    onnxq.quantize(path, made, "bf16", target="onnxq", check=False)
    assert first(made) == tuple(wanted)
    model = onnx.load(made)
    assert {each.overload for each in model.functions} == {node.overload for node in model.graph.node if node.overload}
    agrees(path, made)


@pytest.mark.parametrize("spelling", ["gelu by erf", "bias, relu", "gate", "residual"])
def test_what_onnxruntime_made_of_it(spelling: str, tmp_path: Path) -> None:
    """Its own optimizer has been there: BiasGelu, QuickGelu and the like."""
    body, *wanted = SPELLINGS[spelling]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    path, made = write(tmp_path, body), tmp_path / "made.onnx"
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    onnxq.quantize(tmp_path / "optimized.onnx", made, "bf16", target="onnxq", check=False)
    assert first(made) == tuple(wanted)
    agrees(path, made)


@pytest.mark.parametrize("spelling", ["gelu by erf", "gelu by tanh", "gate", "all", "bias, relu"])
def test_it_is_spelled_out_again(spelling: str, tmp_path: Path) -> None:
    """A file with such nodes, made float once more, computes the same."""
    path, made, again = write(tmp_path, SPELLINGS[spelling][0]), tmp_path / "made.onnx", tmp_path / "again.onnx"
    onnxq.quantize(path, made, "bf16", target="onnxq", check=False)
    dequantize(made, again)
    assert {node.domain for node in onnx.load(again).graph.node} == {""}
    agrees(path, again)
