"""What real networks have between their convolutions becomes part of a region: gates, shuffles, necks and heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from tiny import sqnr

import onnxq
from onnxq.output.signature import read_signature
from onnxq.runtime import native
from onnxq.runtime.profile import PlanTime
from onnxq.tuning.timings import Timings

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("quick")

IN = "float[n, 8, 12, 12] x"
FIRST = "a = Conv<pads = [1, 1, 1, 1]>(x, w)"
LAST = "y = Conv(z, u)"
#: From `a`, [n, 16, 12, 12], to `z`, which has as many channels.
NETWORKS = {
    "gate": "p = GlobalAveragePool(a)  q = Conv(p, u)  r = Relu(q)  s = Conv(r, v)  g = HardSigmoid(s)  z = Mul(a, g)",
    "swish": "s = Sigmoid(a)  z = Mul(a, s)",
    "hard swish": "b = Add(a, three)  c = Clip(b, zero, six)  d = Mul(a, c)  z = Div(d, six)",
    "gelu": "b = Div(a, root)  c = Erf(b)  d = Add(c, one)  e = Mul(a, d)  z = Mul(e, half)",
    "slopes": "z = PRelu(a, slopes)",
    "normalization": """b = Conv(a, u)  c = Concat<axis = 1>(a, b)  d = Mul(c, gains)  e = Add(d, gains)  f = Relu(e)
                        z = Conv(f, t)""",
    "shuffle": "b = Reshape(a, groups)  c = Transpose<perm = [0, 2, 1, 3, 4]>(b)  z = Reshape(c, image)",
    "split": "b, c = Split<axis = 1>(a, parts)  d = Conv<pads = [1, 1, 1, 1]>(c, wide)  z = Concat<axis = 1>(d, b)",
    "neck": """b = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)  c = Conv(b, u)
               d = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(c, , twice)
               z = Add(a, d)""",
    "decoder": """b = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)  c = Conv(b, u)  d = Relu(c)
                  e = ConvTranspose<strides = [2, 2]>(d, up, bias)  z = Add(a, e)""",
    "decoder with activations": """b = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)
        c = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1], group = 4>(b, grouped, bias)  d = Relu(c)
        e = Concat<axis = 1>(a, d)  z = Conv(e, t)""",
    "between pixels": """b = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)  c = Conv(b, u)
        d = Resize<coordinate_transformation_mode = "pytorch_half_pixel", mode = "linear">(c, , twice)
        z = Add(a, d)""",
    "crop": """b = Slice(a, from, to, axes)  c = Pad<mode = "reflect">(b, pads)  z = Sub(a, c)""",
    "few weights": "b = Conv<group = 16, pads = [1, 1, 1, 1]>(a, few)  z = Relu(b)",
    "blocks": "b = DepthToSpace<blocksize = 2>(a)  c = SpaceToDepth<blocksize = 2>(b)  z = Add(a, c)",
}


def _constants() -> dict[str, np.ndarray]:
    ints = {"groups": [0, 4, 4, 12, 12], "image": [0, -1, 12, 12], "parts": [8, 8]}
    ints |= {"from": [1], "to": [11], "axes": [2], "pads": [0, 0, 1, 0, 0, 0, 1, 0]}
    floats = {"zero": 0, "three": 3, "six": 6, "one": 1, "half": 0.5, "root": 1.4142135, "twice": [1, 1, 2, 2]}
    made = {name: np.array(value, np.int64) for name, value in ints.items()}
    made |= {name: np.array(value, np.float32) for name, value in floats.items()}
    made |= {"w": tiny.normal(16, 8, 3, 3) / 8, "u": tiny.normal(16, 16, 1, 1, seed=1) / 4}
    made |= {"v": tiny.normal(16, 16, 1, 1, seed=2) / 4, "wide": tiny.normal(8, 8, 3, 3, seed=3) / 8}
    made |= {"t": tiny.normal(16, 32, 1, 1, seed=4) / 6, "slopes": np.abs(tiny.normal(16, 1, 1, seed=5))}
    made |= {"up": tiny.normal(16, 16, 2, 2, seed=8) / 4, "bias": tiny.normal(16, seed=9) * 30}
    made |= {"grouped": tiny.normal(16, 4, 4, 4, seed=10) / 4}
    return made | {"gains": tiny.normal(32, 1, 1, seed=6), "few": tiny.normal(16, 1, 3, 3, seed=7) / 2}


def _quantized(folder: Path, text: str) -> tuple[list[str], float, float]:
    """Operators of the file; its distance from float, and from its own body, in dB."""
    constants = {name: array for name, array in _constants().items() if f"{name})" in text or f"{name}," in text}
    path, out = tiny.save(tiny.model(text, constants), folder), folder / "q.onnx"
    data = [{"x": tiny.normal(2, 8, 12, 12, seed=i)} for i in range(4)]
    onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True), target="onnxq", data=data, check=False)
    bare = ort.InferenceSession(str(out)).run(None, data[0])[0]
    found = onnxq.session(out).run(None, data[0])[0]
    wanted = ort.InferenceSession(str(path)).run(None, data[0])[0]
    return [node.op_type for node in onnx.load(out).graph.node], sqnr(wanted, found), sqnr(bare, found)


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
@pytest.mark.parametrize("word", NETWORKS)
def test_one_region_takes_it_all(tmp_path: Path, word: str) -> None:
    text = f"g ({IN}) => (float[n, 16, 12, 12] y) {{ {FIRST}  {NETWORKS[word]}  {LAST} }}"
    ops, of_float, of_body = _quantized(tmp_path, text)
    assert ops == ["Region"]
    assert of_float > 22 and of_body > 28


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
def test_heads_are_put_into_the_order_of_boxes(tmp_path: Path) -> None:
    text = f"""g ({IN}) => (float[n, boxes, 4] y) {{ {FIRST}  b = Relu(a)  c = Conv(b, u)
        d = Transpose<perm = [0, 2, 3, 1]>(c)  e = Reshape(d, boxes)  f = Conv(b, v)
        h = Transpose<perm = [0, 2, 3, 1]>(f)  i = Reshape(h, boxes)  y = Concat<axis = 1>(e, i) }}"""
    made = _constants() | {"boxes": np.array([0, -1, 4], np.int64)}
    constants = {name: made[name] for name in ("w", "u", "v", "boxes")}
    path, out = tiny.save(tiny.model(text, constants), tmp_path), tmp_path / "q.onnx"
    data = [{"x": tiny.normal(2, 8, 12, 12, seed=i)} for i in range(4)]
    onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True), target="onnxq", data=data, check=False)
    assert onnx.load(out).graph.node[0].op_type == "Region"
    wanted = ort.InferenceSession(str(path)).run(None, data[0])[0]
    assert sqnr(wanted, onnxq.session(out).run(None, data[0])[0]) > 25


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
@pytest.mark.parametrize("size", [1, 16])
def test_functions_that_add_dimensions_are_no_tables(tmp_path: Path, size: int) -> None:
    body = "b = Mul(a, k)  c = Squeeze(b, first)  y = Conv(c, u)"
    text = f"g ({IN}) => (float[n, 16, 12, 12] y) {{ {FIRST}  {body} }}"
    constants = {name: _constants()[name] for name in ("w", "u")} | {"first": np.array([0], np.int64)}
    k = np.linspace(0.5, 1.5, size, dtype=np.float32).reshape(1, 1, size, 1, 1)
    path, out = tiny.save(tiny.model(text, constants | {"k": k}), tmp_path), tmp_path / "q.onnx"
    data = [{"x": tiny.normal(2, 8, 12, 12, seed=i)} for i in range(4)]
    onnxq.quantize(path, out, onnxq.Recipe("w8a8", keep_slow=True), target="onnxq", data=data, check=False)
    wanted = ort.InferenceSession(str(path)).run(None, data[0])[0]
    assert sqnr(wanted, onnxq.session(out).run(None, data[0])[0]) > 25


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
@pytest.mark.parametrize("where", ["first", "last"])
def test_few_weights_at_an_end_are_part_of_a_region(tmp_path: Path, where: str) -> None:
    """A plan has no line for them where nothing is stored, and a region ends only where there is no step."""
    first = "a = Conv(x, few)  b = Relu(a)  y = Conv<pads = [1, 1, 1, 1]>(b, w)"
    last = "a = Conv<pads = [1, 1, 1, 1]>(x, w)  b = Relu(a)  y = Conv<group = 16>(b, few)"
    few = tiny.normal(8, 8, 1, 1, seed=3) / 3 if where == "first" else tiny.normal(16, 1, 2, 2, seed=3)
    text = f"g ({IN}) => (float[n, 16, h, v] y) {{ {first if where == 'first' else last} }}"
    path, out = tiny.save(tiny.model(text, {"w": _constants()["w"], "few": few}), tmp_path), tmp_path / "q.onnx"
    data = [{"x": tiny.normal(2, 8, 12, 12, seed=i)} for i in range(4)]
    recipe = onnxq.Recipe("w8a8", keep_slow=True, min_sqnr=10)
    onnxq.quantize(path, out, recipe, target="onnxq", data=data, check=False)
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Region"]
    wanted = ort.InferenceSession(str(path)).run(None, data[0])[0]
    assert sqnr(wanted, onnxq.session(out).run(None, data[0])[0]) > 25


@pytest.mark.skipif(native.path() is None, reason="the compiled library was not built")
@pytest.mark.usefixtures("twice_as_fast")
@pytest.mark.parametrize("of_regions", [0.3, 0.9])
def test_the_faster_of_regions_and_of_onnxruntimes_kernels_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_regions: float
) -> None:
    """The plan says which, in its own file and in the model's metadata, and carries it out again."""
    monkeypatch.setattr(
        Timings, "measured", lambda self, plan, bound: PlanTime(of_regions if plan.regions else 0.6, 0.0)
    )
    residual = "b = Relu(a)  c = Conv(b, u)  d = Relu(c)  z = Add(b, d)"
    text = f"g ({IN}) => (float[n, 16, 12, 12] y) {{ {FIRST}  {residual}  {LAST} }}"
    constants = {name: _constants()[name] for name in ("w", "u")}
    path, out = tiny.save(tiny.model(text, constants), tmp_path), tmp_path / "q.onnx"
    data = [{"x": tiny.normal(2, 8, 12, 12, seed=i)} for i in range(8)]
    recipe = onnxq.Recipe("w8a8", min_sqnr=10)
    result = onnxq.quantize(path, out, recipe, target="onnxq", data=data)
    made = {node.op_type for node in onnx.load(out).graph.node}
    assert result.plan.regions == (of_regions < 0.6) == ("Region" in made) != ("QuantizeLinear" in made)
    assert result.check is not None
    assert result.plan.regions != any("faster here than regions" in note for note in result.check.notes)
    plan = tmp_path / "plan.json"
    plan.write_text(result.plan.to_json())
    assert onnxq.load_plan(plan) == result.plan
    assert read_signature(out).plan == result.plan
    onnxq.quantize(path, out, recipe, data=data, target="onnxq", plan=result.plan, force=True)
    assert made == {node.op_type for node in onnx.load(out).graph.node}


@pytest.mark.parametrize("target", ["ort-cpu", "onnxq"])
def test_a_pool_that_says_where_its_numbers_lay_stays_in_float(tmp_path: Path, target: str) -> None:
    """Also where nobody but who runs the model reads that."""
    text = f"""g ({IN}) => (float[n, 16, 6, 6] y, int64[n, 16, 6, 6] i) {{
        {FIRST}  p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)  y = Conv (p, u)
    }}"""
    path = tiny.save(tiny.model(text, {name: _constants()[name] for name in ("w", "u")}), tmp_path)
    data = [{"x": tiny.normal(2, 8, 12, 12, seed=i)} for i in range(8)]
    recipe = onnxq.Recipe("w8a8", keep_slow=True)
    result = onnxq.quantize(path, tmp_path / "q.onnx", recipe, target=target, data=data, check=False)
    assert {choice.op for choice in result.plan} == {"Conv"}
    y, places = onnxq.session(result.output).run(None, data[0])
    wanted = onnxq.session(path).run(None, data[0])
    assert sqnr(wanted[0], y) > 20 and places.shape == wanted[1].shape
