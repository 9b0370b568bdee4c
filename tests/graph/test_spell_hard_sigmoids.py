"""HardSigmoid in the words that OpenVINO computes inside of other kernels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from tiny import normal

from onnxq import Recipe, quantize
from onnxq.passes.fusing.spell_hard_sigmoids import SpellHardSigmoids
from onnxq.runtime.consumers import kernels_in
from onnxq.runtime.session import Session

X = np.concatenate([normal(40, 5) * 6, np.array([[-3, 3, 0, -3.0001, 3.0001]], np.float32)])
SWISH = "s = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x)  "
SIGMOID = {"Mul": 1, "Add": 1, "Clip": 1}
SPELT = {
    "a swish": (SWISH + "y = Mul(x, s)", {"Add": 1, "Clip": 1, "Mul": 1, "Div": 1}),
    "its other order": (SWISH + "y = Mul(s, x)", {"Add": 1, "Clip": 1, "Mul": 1, "Div": 1}),
    "its slope alone": (SWISH + "y = Identity(s)", SIGMOID | {"Identity": 1}),
    "read twice": (SWISH + "m = Mul(x, s)  y = Add(m, s)", {"Mul": 2, "Add": 2, "Clip": 1}),
    "times itself": (SWISH + "y = Mul(s, s)", {"Mul": 2, "Add": 1, "Clip": 1}),
    "times another": (SWISH + "t = Tanh(x)  y = Mul(t, s)", SIGMOID | {"Mul": 2, "Tanh": 1}),
    "of another slope": ("s = HardSigmoid(x)  y = Mul(x, s)", {"Mul": 2, "Add": 1, "Clip": 1}),
    "falling": ("y = HardSigmoid<alpha = -0.3, beta = 0.1>(x)", SIGMOID),
}


def spelt(body: str, opset: int = 17, type: str = "float") -> tuple[ir.Model, ir.Model, bool]:
    before, after = (
        tiny.read(tiny.model(f"g ({type}[n, 5] x) => ({type}[n, 5] y) {{ {body} }}", opset=opset)) for _ in "ab"
    )
    return before, after, SpellHardSigmoids()(after).modified


@pytest.mark.parametrize("name", SPELT)
def test_it_computes_the_same(name: str) -> None:
    body, wanted = SPELT[name]
    before, after, is_modified = spelt(body)
    assert is_modified and Counter(node.op_type for node in after.graph if node.op_type != "Constant") == wanted
    np.testing.assert_allclose(Session(after).run({"x": X})[0], Session(before).run({"x": X})[0], atol=4e-6, rtol=2e-6)


@pytest.mark.parametrize(("opset", "type"), [(10, "float"), (17, "double"), (17, "float16")])
def test_what_has_other_words_or_types_stays(opset: int, type: str) -> None:
    _, after, is_modified = spelt("y = HardSigmoid(x)", opset, type)
    assert not is_modified and [node.op_type for node in after.graph] == ["HardSigmoid"]


def test_in_the_branch_of_an_if() -> None:
    text = f"""g (float[n, 5] x, bool b) => (float[n, 5] y) {{
        y = If(b) <then_branch = t () => (float[n, 5] u) {{ {SWISH} u = Mul(x, s) }},
                   else_branch = e () => (float[n, 5] v) {{ v = Tanh(x) }}>
    }}"""
    before, after = (tiny.read(tiny.model(text)) for _ in "ab")
    assert SpellHardSigmoids()(after).modified
    for b in (True, False):
        feed = {"x": X, "b": np.array(b)}
        np.testing.assert_allclose(Session(after).run(feed)[0], Session(before).run(feed)[0], atol=4e-6, rtol=2e-6)


def test_files_for_openvino_have_none(tmp_path: Path) -> None:
    """Nor has what OpenVINO compiles of them a kernel for it."""
    text = """g (float[n, 8, 12, 12] x) => (float[n, 8, 12, 12] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, k)  b = Add (a, three)  c = Clip (b, zero, six)  d = Mul (a, c)
        e = Div (d, six)  y = Conv <pads = [1, 1, 1, 1]> (e, l)
    }"""
    numbers = {word: np.array(value, np.float32) for word, value in (("three", 3), ("zero", 0), ("six", 6))}
    model = tiny.save(tiny.model(text, {"k": normal(8, 8, 3, 3), "l": normal(8, 8, 3, 3, seed=1)} | numbers), tmp_path)
    x = np.random.default_rng(0).standard_normal((8, 1, 8, 12, 12)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    recipe = Recipe("w8a8", min_sqnr=-np.inf, keep_slow=True)
    output = quantize(model, tmp_path / "q.onnx", recipe, target="openvino", data=tmp_path / "data.npz").output
    found = Counter(node.op_type for node in onnx.load(output).graph.node)
    assert not found["HardSigmoid"] and found["Clip"] == 1 and found["Div"] == 1
    feed = {"x": x[0]}
    assert tiny.sqnr(Session(model).run(feed)[0], Session(output).run(feed)[0]) > 20
    kernels = kernels_in("openvino", output, 1, feed, 0.0)
    if kernels is None:
        pytest.skip("no openvino to compile it")
    assert not {"HardSigmoid", "Eltwise", "Math"} & {kernel.op for kernel in kernels}
