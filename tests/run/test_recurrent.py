"""Recurrent layers with int8 weights: what files hold, with the library and without, and what else becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

import onnxq
from onnxq import Recipe
from onnxq.conversion.convert import convert
from onnxq.conversion.dequantize import dequantize
from onnxq.conversion.restore import restore_products, weights_by_node
from onnxq.job import open_job
from onnxq.model import graph
from onnxq.passes.prepare import prepare
from onnxq.passes.recurrent.insert_recurrent import InsertRecurrent
from onnxq.plan import Choice, Method, Plan
from onnxq.runtime import native
from onnxq.runtime.profile import PlanTime
from onnxq.runtime.session import Session
from onnxq.tuning import tune
from onnxq.tuning.timings import Timings

pytestmark = pytest.mark.usefixtures("quick")
LIBRARY = [False, True] if native.path() is not None else [False]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def weights(cell: str, directions: int = 1, inputs: int = 24, hidden: int = 20) -> dict[str, NDArray]:
    rows = GATES[cell] * hidden
    return {
        "w": normal(directions, rows, inputs, seed=1),
        "r": normal(directions, rows, hidden, seed=2),
        "b": normal(directions, 2 * rows, seed=3),
    }


LAYERS: dict[str, tuple[str, dict[str, NDArray]]] = {
    "both ways": (
        """g (float[T,B,24] x, float[2,B,20] h, float[2,B,20] c) => (float[T,2,B,20] y, float[2,B,20] z) {
            y, , z = LSTM <hidden_size = 20, direction = "bidirectional"> (x, w, r, b, , h, c) }""",
        weights("LSTM", 2),
    ),
    "stacked": (
        """g (float[T,B,24] x) => (float[2,B,20] all) {
            y, h = LSTM <hidden_size = 20, clip = 2.0> (x, w, r)
            axis = Constant <value_ints = [1]> ()  one = Squeeze (y, axis)
            z, k = GRU <hidden_size = 20, linear_before_reset = 1, direction = "reverse"> (one, v, q, u)
            all = Concat <axis = 0> (h, k) }""",
        weights("LSTM") | dict(zip("vqu", weights("GRU", inputs=20).values(), strict=True)),
    ),
    "short sequences": (
        """g (float[T,B,24] x, int32[B] n) => (float[T,1,B,20] y) {
            y = GRU <hidden_size = 20> (x, w, r, b, n) }""",
        weights("GRU"),
    ),
    "few weights": (
        "g (float[T,B,24] x) => (float[T,1,B,12] y) { y = RNN <hidden_size = 12> (x, w, r, b) }",
        weights("RNN", hidden=12),
    ),
    "branches": (
        """g (float[T,B,24] x, bool yes) => (float[1,B,20] y) {
            y = If (yes) <then_branch = t () => (float[1,B,20] a) { s, a = GRU <hidden_size = 20> (x, w, r, b) },
                          else_branch = e () => (float[1,B,20] d) {
                                n = Neg (x)  k, d = GRU <hidden_size = 20> (n, w, r) }>
        }""",
        weights("GRU"),
    ),
}


def feed_of(proto: onnx.ModelProto, seed: int = 0) -> dict[str, NDArray]:
    """Five steps of two sequences."""
    rng, sizes = np.random.default_rng(seed), {"T": 5, "B": 2}
    feed: dict[str, NDArray] = {}
    for value in proto.graph.input:
        shape = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        x = (
            rng.standard_normal(shape)
            if dtype == np.float32
            else np.arange(5, 5 - int(np.prod(shape)), -1).reshape(shape)
        )
        feed[value.name] = np.asarray(x).astype(dtype)
    return feed


def nodes_of(path: Path) -> list[ir.Node]:
    return [node for node in graph.nodes(ir.load(path)) if node.op_type == "Recurrent"]


@pytest.mark.parametrize("scheme", ["w8a8-dynamic", "w4a16"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers(tmp_path: Path, layer: str, scheme: str) -> None:
    """Same outputs with the library, without it, and without onnxruntime's optimizer; the weights of both branches lie
    in the file once."""
    proto = tiny.model(*LAYERS[layer])
    path, feed = tiny.save(proto, tmp_path), feed_of(proto)
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe(scheme, keep_slow=True), target="onnxq")
    assert result.check is not None and result.check.sqnr > 30
    made = nodes_of(result.output)
    assert len(made) == (2 if layer in ("stacked", "branches") else 1)
    assert not {"LSTM", "GRU", "RNN"} & set(tiny.ops(ir.load(result.output)))
    saved = onnx.load(result.output)
    onnx.checker.check_model(saved, full_check=True)
    assert len(saved.graph.initializer) <= len(proto.graph.initializer) + 2 * len(made) + 1
    assert native.path() is None or result.check.kernels == {"Recurrent": len(made)}
    wanted = Session(path).run(feed)
    for library in LIBRARY:
        for optimize in (True, False):
            for a, b in zip(wanted, Session(result.output, library=library, optimize=optimize).run(feed), strict=True):
                assert tiny.sqnr(a, b) > 30


def test_opsets_as_old_as_bodies_need(tmp_path: Path) -> None:
    text = LAYERS["few weights"][0]
    path = tiny.save(tiny.model(text, LAYERS["few weights"][1], opset=9, ir_version=4), tmp_path)
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w8a8-dynamic", keep_slow=True), target="onnxq")
    assert nodes_of(result.output)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("y = LSTM <hidden_size = 20> (x, w, r, b, , , , p)", "it has peepholes"),
        ("y = LSTM <hidden_size = 20, input_forget = 1> (x, w, r, b)", "its input and forget gates are one"),
        (
            'y = LSTM <hidden_size = 20, activations = ["Sigmoid", "Relu", "Tanh"]> (x, w, r, b)',
            "its activation functions are not the default ones",
        ),
        ("n = Identity (m)  y = LSTM <hidden_size = 20> (x, w, n, b)", "its weights are not both constant"),
    ],
)
def test_layers_that_kernels_do_not_compute(tmp_path: Path, text: str, reason: str) -> None:
    given = weights("LSTM") | {"p": normal(1, 60)}
    m = "float[1,80,20] m" if "(m)" in text else ""
    model = f"g (float[T,B,24] x{', ' * bool(m)}{m}) => (float[T,1,B,20] y) {{ {text} }}"
    used = {name: x for name, x in given.items() if name in text.replace("Sigmoid", "").replace("Relu", "")}
    path = tiny.save(tiny.model(model, used), tmp_path)
    (choice,) = (choice for choice in open_job(path, "w8a8-dynamic", target="onnxq").plan if choice.op == "LSTM")
    assert (choice.method, choice.reason) == (Method.STORED, f"{reason}: unpacked when the model loads")


def test_named_activation_functions_that_are_the_default(tmp_path: Path) -> None:
    text = """g (float[T,B,24] x) => (float[T,2,B,20] y) {
        y = GRU <hidden_size = 20, direction = "bidirectional", activations = ["Sigmoid", "Tanh", "sigmoid", "tanh"]>
            (x, w, r, b) }"""
    path = tiny.save(tiny.model(text, weights("GRU", 2)), tmp_path)
    result = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w4a16", keep_slow=True), target="onnxq")
    assert nodes_of(result.output)


@pytest.mark.parametrize(
    ("recipe", "label", "reason"),
    [
        (
            Recipe("w4a16", symmetric=False),
            "uint8 stored",
            "its kernel has no zero points: unpacked when the model loads",
        ),
        (Recipe("w8a16", granularity="tensor"), "int8", "an LSTM has one scale an output"),
        (Recipe("w8a8-dynamic", granularity="tensor"), "int8 dynamic", "an LSTM has one scale an output"),
        (Recipe("w8a16", granularity="channel"), "int8", ""),
    ],
    ids=str,
)
def test_what_is_asked_of_all_weights(tmp_path: Path, recipe: Recipe, label: str, reason: str) -> None:
    text = "g (float[T,B,24] x) => (float[T,1,B,20] y) { y = LSTM <hidden_size = 20> (x, w, r, b) }"
    path = tiny.save(tiny.model(text, weights("LSTM")), tmp_path)
    (choice,) = open_job(path, recipe, target="onnxq").plan
    assert (choice.label, choice.reason) == (label, reason)


@pytest.mark.parametrize("cell", GATES)
def test_sequences_before_steps(cell: str) -> None:
    """onnxruntime has no such layers on processors; between Transposes they are those that it has."""
    c = ", c" if cell == "LSTM" else ""
    declared, made = (", float[B,1,20] c", ", z") if c else ("", "")
    text = f"""g (float[B,T,24] x, float[B,1,20] h{declared}) => (float y, float k{", float z" * bool(c)}) {{
        [rnn] y, k{made} = {cell} <hidden_size = 20, layout = LAYOUT> (x, w, r, b, , h{c}) }}"""
    shapes = {"x": (2, 5, 24), "h": (2, 1, 20)} | ({"c": (2, 1, 20)} if c else {})
    feed = {name: normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    model = tiny.read(tiny.model(text.replace("LAYOUT", "1"), weights(cell), opset=17))
    prepare(model)
    plan = Plan("w4a16", "onnxq", {"rnn": Choice("rnn", cell, Method.PACKED, "int8")})
    assert InsertRecurrent(plan, exact=True)(model).modified
    assert tiny.ops(model).count("Transpose") == len(feed) + len(model.graph.outputs)
    got = Session(model).run(feed)
    # The same in layout 0, turned by hand.
    straight = tiny.model(
        text.replace("LAYOUT", "0").replace("[B,T,24]", "[T,B,24]").replace("[B,1,20]", "[1,B,20]"), weights(cell)
    )
    wanted = Session(tiny.read(straight)).run({name: x.swapaxes(0, 1) for name, x in feed.items()})
    for a, b in zip(wanted, got, strict=True):
        turned = a.transpose(2, 0, 1, 3) if a.ndim == 4 else a.swapaxes(0, 1)
        assert tiny.sqnr(turned, b) > 30


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("target", ["onnx", "ort-cpu", "onnxq"])
def test_converted(tmp_path: Path, target: str, directions: int) -> None:
    """Codes stay what they are, there and back, of rows as long as those of the state and of other lengths."""
    way = "bidirectional" if directions == 2 else "reverse"
    text = f"""g (float[T,B,24] x) => (float[T,{directions},B,20] y) {{
        y = LSTM <hidden_size = 20, direction = "{way}"> (x, w, r, b) }}"""
    proto = tiny.model(text, weights("LSTM", directions))
    path, feed = tiny.save(proto, tmp_path), feed_of(proto)
    made = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w4a16", keep_slow=True), target="onnxq").output
    done = convert(made, target, tmp_path / "c.onnx")
    other = done.output
    assert tiny.ops(ir.load(other)).count("Recurrent") == (target == "onnxq") and not done.again
    assert (
        sum(len(x.dims) > 1 and x.data_type != onnx.TensorProto.FLOAT for x in onnx.load(other).graph.initializer) == 2
    )
    assert done.plan.choices["y"].elements == sum(x.size for x in weights("LSTM", directions).values() if x.ndim == 3)
    restored = ir.load(other)
    restore_products(restored)
    assert target != "onnxq" or set(weights_by_node(restored)) == {("y", 1), ("y", 2)}
    (of_file,), (of_other,) = Session(made, library=False).run(feed), Session(other, library=False).run(feed)
    assert tiny.sqnr(of_file, of_other) > 100
    again = convert(other, "onnxq", tmp_path / "a.onnx").output if target == "onnx" and directions == 2 else made
    for a, b in zip(nodes_of(made)[0].inputs[1:5], nodes_of(again)[0].inputs[1:5], strict=True):
        np.testing.assert_array_equal(tiny.array(a), tiny.array(b))
    back = dequantize(made, tmp_path / "f.onnx").output
    assert tiny.ops(ir.load(back)) == ["LSTM"]
    assert tiny.sqnr(of_file, Session(back).run(feed)[0]) > 100


@pytest.mark.parametrize("directions", [1, 2])
def test_converted_for_layers_that_read_no_codes(tmp_path: Path, directions: int) -> None:
    """OpenVINO refuses them beside int8 nodes: weights are what it gets from the float model too."""
    way = "bidirectional" if directions == 2 else "forward"
    text = f"""g (float[T,B,24] x) => (float[T,{directions},B,20] y) {{
        y = LSTM <hidden_size = 20, direction = "{way}"> (x, w, r, b) }}"""
    path = tiny.save(tiny.model(text, weights("LSTM", directions)), tmp_path)
    made = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w4a16", keep_slow=True), target="onnxq").output
    done = convert(made, "openvino", tmp_path / "c.onnx")
    assert [(choice.method, choice.format) for choice in done.plan] == [(Method.STORED, "float16")]
    assert done.again["y"][0].startswith("OpenVINO's recurrent layers read no codes")
    assert done.again["y"][1] > 60


def test_converted_beside_regions(tmp_path: Path) -> None:
    """Their bodies are in the opset of the file, which codes of the layer raise."""
    text = """g (float[T,B,24] x) => (float[T,B,64] z) {
        y = GRU <hidden_size = 20> (x, w, r, b)  s = Squeeze (y, one)  z = MatMul (s, m) }"""
    given = weights("GRU") | {"one": np.array([1]), "m": normal(20, 64)}
    path = tiny.save(tiny.model(text, given), tmp_path)
    data = [{"x": normal(5, 2, 24, seed=i)} for i in range(8)]
    recipe = Recipe("w8a8", keep_slow=True, min_sqnr=-np.inf)
    made = onnxq.quantize(path, tmp_path / "q.onnx", recipe, target="onnxq", data=data).output
    done = convert(made, "onnxq", tmp_path / "c.onnx")
    assert tiny.ops(ir.load(done.output)) == tiny.ops(ir.load(made)) == ["Recurrent", "Squeeze", "Region"]
    assert done.check is not None and done.check.sqnr > 100
    saved = onnx.load(done.output)
    assert {opset.version for f in saved.functions for opset in f.opset_import} == {saved.opset_import[0].version}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("hidden_size", 40, "the tiles have the shape"),
        ("hidden_size", 2**62, "the tiles have the shape"),
        ("input_size", 2**62, "the tiles have the shape"),
        ("input_size", 0, "nothing in it is quantized|onnxruntime refuses the model"),
        ("cell", "GRU", "the tiles have the shape"),
        ("cell", "lstm", "nothing in it is quantized|must be LSTM, GRU or RNN"),
        ("cell", b"\xff", "attribute 'cell' is no text in UTF-8"),
        ("direction", "bidirectional", "onnxruntime refuses the model"),
    ],
    ids=str,
)
def test_nodes_that_nobody_can_read_back(name: str, value: Any, reason: str, tmp_path: Path) -> None:
    """Tiles of other sizes than the node says, and words that it cannot have."""
    proto = tiny.model(*LAYERS["few weights"])
    path = tiny.save(proto, tmp_path)
    made = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w4a16", keep_slow=True), target="onnxq").output
    spoilt = onnx.load(made)
    (node,) = (node for node in spoilt.graph.node if node.op_type == "Recurrent")
    node.attribute.remove(next(a for a in node.attribute if a.name == name))
    node.attribute.append(onnx.helper.make_attribute(name, value))
    onnx.save(spoilt, tmp_path / "s.onnx")
    with pytest.raises(onnxq.OnnxqError, match=reason):
        dequantize(tmp_path / "s.onnx", tmp_path / "f.onnx")


@pytest.mark.parametrize(("ratio", "computes"), [(0.4, True), (1.2, False)])
def test_kernels_take_what_was_left_in_float_for_the_noise_of_its_weights(
    ratio: float, computes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given back, a layer has the same int8 weights: its kernel makes no more noise, and is taken where faster."""

    def given_back(terms: Any, plan: Plan, costs: Any, candidates: Any) -> Plan:
        return candidates[1]

    monkeypatch.setattr(tune, "_best_bargain", given_back)
    monkeypatch.setattr(
        Timings, "measured", lambda timings, plan, bound: PlanTime(ratio if plan.those(Method.DYNAMIC) else 1.0, 0.001)
    )
    monkeypatch.setattr(Timings, "is_saved_slower", lambda *_: False)
    text = "g (float[T,B,24] x) => (float[T,1,B,20] y) { y = LSTM <hidden_size = 20> (x, w, r, b) }"
    path = tiny.save(tiny.model(text, weights("LSTM")), tmp_path)
    data = [{"x": normal(6, 2, 24, seed=i)} for i in range(8)]
    made = onnxq.quantize(path, tmp_path / "q.onnx", Recipe("w8a8"), target="onnxq", data=data)
    assert made.plan.choices["y"].method is (Method.DYNAMIC if computes else Method.STORED)
