"""Every operator computes what onnxruntime computes for it in the opset of the model: in a higher one, and folded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import tiny
from numpy.typing import NDArray
from onnx import defs, helper, numpy_helper
from onnx_ir.passes.common import InlinePass
from opset_cases import CASES, Case
from tiny import normal

import onnxq
from onnxq.errors import BadModel
from onnxq.model import graph
from onnxq.passes.normalize.fold_constants import EVALUATED, FoldConstants
from onnxq.passes.opsets.inline_functions import InlineFunctions
from onnxq.passes.opsets.raise_opset import RaiseOpset
from onnxq.runtime import known
from onnxq.runtime.session import Session

#: From 22 on onnxruntime has no kernels on processors for GlobalLpPool, MaxRoiPool and RoiAlign.
HIGHEST = 21
#: Operators that are random, those of which onnxruntime has no kernel for processors, and one that is younger.
NOT_RUN = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
NOT_RUN |= {"DeformConv", "Attention"}


def versions() -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, set()).add(max(schema.since_version, known.OLDEST_OPSET))
    return found


VERSIONS = versions()


def cases_of(opset: int) -> list[Case]:
    """Those of which something was new in this opset."""
    new = [case for case in CASES if opset in VERSIONS[case.op] | {case.first}]
    return [case for case in new if case.first <= opset <= case.last]


def rename(body: onnx.GraphProto, prefix: str) -> onnx.GraphProto:
    for value in (*body.input, *body.output, *body.initializer):
        value.name = prefix + value.name
    for node in body.node:
        node.input[:], node.output[:] = (
            [name and prefix + name for name in each] for each in (node.input, node.output)
        )
        for attribute in node.attribute:
            rename(attribute.g, prefix)
    return body


def side_by_side(cases: Iterable[Case], opset: int) -> onnx.ModelProto:
    """One model of all, whose outputs are called like the operators."""
    made = tiny.model("g () => () { }", opset=opset, ir_version=8)
    for i, case in enumerate(cases):
        part = rename(case.model(opset).graph, f"{case.op}_{i}_")
        for field in ("node", "initializer", "input", "output"):
            getattr(made.graph, field).extend(getattr(part, field))
    return made


def feed_of(proto: onnx.ModelProto) -> dict[str, NDArray]:
    feed, rng = {}, np.random.default_rng(0)
    for value in proto.graph.input:
        kind = value.type.tensor_type
        numbers = rng.standard_normal([dim.dim_value or 4 for dim in kind.shape.dim]) * 3
        feed[value.name] = np.asarray(numbers).astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return feed


def assert_equal(names: list[str], wanted: list[NDArray], got: list[NDArray]) -> None:
    for name, a, b in zip(names, wanted, got, strict=True):
        assert a.dtype == b.dtype, name
        tolerance = 5e-3 if a.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance, err_msg=name)


def test_there_is_a_case_of_every_operator_that_changed() -> None:
    """In an opset that a model may be raised to; from one that onnxruntime runs."""
    changed = {op for op, each in VERSIONS.items() if len([v for v in each if v <= HIGHEST]) > 1}
    assert changed - {case.op for case in CASES} - NOT_RUN == set()


@pytest.mark.parametrize("opset", range(known.OLDEST_OPSET, HIGHEST))
def test_every_operator_computes_the_same_in_a_higher_opset(opset: int) -> None:
    proto = side_by_side(cases_of(opset), opset)
    made, feed = tiny.read(proto), feed_of(proto)
    RaiseOpset(HIGHEST)(made)
    assert graph.opset(made) == HIGHEST
    names = [output.name for output in proto.graph.output]
    wanted, got = Session(tiny.read(proto)).run(feed), Session(made).run(feed)
    assert_equal(names, wanted, got)


@pytest.mark.parametrize("opset", sorted(set.union(*(VERSIONS[op] for op in EVALUATED)) & set(range(HIGHEST + 1))))
def test_constants_are_folded_to_what_onnxruntime_computes(opset: int) -> None:
    assert {case.op for case in CASES} >= EVALUATED
    proto = side_by_side(cases_of(opset), opset)
    for name, array in feed_of(proto).items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    del proto.graph.input[:]
    for output in proto.graph.output:  # what is an output itself is not folded
        proto.graph.node.append(helper.make_node("Identity", [output.name], [f"{output.name}_"]))
        output.name += "_"
    made = tiny.read(proto)
    (wanted, got), names = (Session(made).run({}), folded(made)), [output.name for output in proto.graph.output]
    assert len(list(graph.nodes(made))) < len(proto.graph.node)
    assert_equal(names, wanted, got)


def folded(made: ir.Model) -> list[NDArray]:
    FoldConstants(growth=1 << 20)(made)
    return Session(made).run({})


@pytest.mark.parametrize(
    ("node", "constant"),
    [
        ("y = ReduceSumSquare<keepdims = 0>(c)", np.array([1, 2], np.int32)),
        ("y = ReduceMean<axes = [0], keepdims = 0>(c)", np.zeros((0, 3), np.float32)),
        ("y = Cast<to = 8>(c)", np.array([1, 2.5], np.float32)),
    ],
    ids=["integers of another type", "a mean of nothing", "texts"],
)
def test_what_onnxs_reference_computes_otherwise_stays(node: str, constant: np.ndarray) -> None:
    made = tiny.read(tiny.model(f"g () => (float[] z) {{ {node}  z = Identity(y) }}", {"c": constant}, opset=17))
    FoldConstants(decodes=False)(made)
    assert [each.op_type for each in made.graph] == [node.split()[2].split("<")[0].split("(")[0], "Identity"]


@pytest.mark.parametrize(("largest", "left"), [(1e6, 1), (1e12, 3)])
def test_numbers_beyond_all_codes_are_encoded_as_by_onnxruntime(largest: float, left: int) -> None:
    text = "g () => (y) { q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  y = Identity(d) }"
    constants = {"w": np.float32([1, -largest, largest]), "s": np.float32(0.1), "z": np.int8(0)}
    made = tiny.read(tiny.model(text, constants))
    wanted = Session(made).run({})
    np.testing.assert_array_equal(folded(made), wanted)
    assert len(tiny.ops(made)) == left


BESIDE = 'r = Resize<mode="linear">(y, , s)  n = GroupNormalization<num_groups=2>(r, u, u)  z = Hardmax(n)'


@pytest.mark.parametrize(
    ("opset", "call", "function", "alone"),
    [
        (
            10,
            'f<m="linear">(x, s, t)',
            "f<m>(x, s, t) => (y) { y = Resize<mode: string = @m>(x, s) }",
            "Resize<M>(x, s)",
        ),
        (11, "f<a=2>(x, s, t)", "f<a>(x, s, t) => (y) { y = Hardmax<axis: int = @a>(x) }", "Hardmax<axis=2>(x)"),
        (11, "f(x, s, t)", "f(x, s, t) => (y) { y = Softmax<axis=1>(x) }", "Softmax<axis=1>(x)"),
        (11, "f(x, s, t)", "f(x, s, t) => (y) { y = LogSoftmax(x) }", "LogSoftmax(x)"),
        (
            18,
            "f(x, s, t)",
            "f(x, s, t) => (y) { y = GroupNormalization<G>(x, t, t) }",
            "GroupNormalization<G>(x, t, t)",
        ),
    ],
)
def test_functions_in_an_older_opset_compute_the_same(opset: int, call: str, function: str, alone: str) -> None:
    """Beside nodes of the same operators that are the model's own and mean something else."""
    constants = {"s": np.float32([1, 1, 2, 2]), "t": np.float32([0.5, 2]), "u": np.float32([0.5, 1, 2, 3])}
    function, alone = (x.replace("<G>", "<num_groups=2>").replace("<M>", '<mode="linear">') for x in (function, alone))
    old = tiny.model(f"g (float[1,4,3,3] x) => (y) {{ y = {alone} }}", constants, opset=opset, ir_version=8)
    local = f'<domain: "local", opset_import: ["" : {opset}]> {function}'
    text = f"g (float[1,4,3,3] x) => (y, r, n, z) {{ y = local.{call}  {BESIDE} }}"
    made = tiny.read(tiny.model(text, constants, opset=HIGHEST, ir_version=10, functions=local))
    InlineFunctions()(made)
    x = normal(1, 4, 3, 3)
    (y,) = Session(tiny.read(old)).run({"x": x})
    size = str(list(y.shape))
    rest = tiny.model(f"g (float{size} y) => (r, n, z) {{ {BESIDE} }}", constants, opset=HIGHEST, ir_version=10)
    others = Session(tiny.read(rest)).run({"y": y})
    for wanted, got in zip([y, *others], Session(made).run({"x": x}), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["Pad<pads=[0,1,0,2], value=0.5>", "Clip<min=-0.25, max=0.5>"])
def test_numbers_of_functions_in_an_older_opset_have_the_type_of_what_they_are_for(op: str) -> None:
    """The converter makes float32 of them."""
    nodes = f"d = Cast<to=11>(x)  e = {op}(d)  y = Cast<to=1>(e)"
    local = f'<domain: "local", opset_import: ["" : 10]> f(x) => (y) {{ {nodes} }}'
    made = tiny.read(tiny.model("g (float[2,8] x) => (y) { y = local.f(x) }", ir_version=8, functions=local))
    InlineFunctions()(made)
    alone = tiny.read(tiny.model(f"g (float[2,8] x) => (y) {{ {nodes} }}", opset=10, ir_version=8))
    RaiseOpset(17)(alone)
    x = {"x": normal(2, 8)}
    np.testing.assert_array_equal(Session(made).run(x)[0], Session(alone).run(x)[0])


def test_functions_in_another_version_of_any_domain_whose_operators_are_the_same_are_inlined() -> None:
    local = (
        '<domain: "local", opset_import: ["ai.onnx.ml" : 1]> f(x) => (y) { y = ai.onnx.ml.Normalizer<norm="L2">(x) }'
    )
    proto = tiny.model("g (float[2,8] x) => (y) { y = local.f(x) }", ir_version=8, functions=local)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    made = tiny.read(proto)
    InlineFunctions()(made)
    assert tiny.ops(made) == ["Normalizer"]
    x = normal(2, 8)
    np.testing.assert_allclose(Session(made).run({"x": x})[0], x / np.linalg.norm(x, axis=1, keepdims=True), rtol=1e-5)


def test_functions_that_onnxruntime_takes_for_others_are_to_blame(tmp_path: Path) -> None:
    """It computes them by the opset of the model, in which Softmax means something else."""
    local = '<domain: "local", opset_import: ["" : 11]> f(x) => (y) { y = Softmax<axis=1>(x) }'
    text = "g (float[2,4,16] x) => (y) { a = MatMul(x, w)  y = local.f(a) }"
    path = tiny.save(tiny.model(text, {"w": normal(16, 16) * 4}, ir_version=8, functions=local), tmp_path)
    with pytest.raises(
        BadModel, match=r"another model by ONNX than onnxruntime runs .*opset than the model \('local::f'\)"
    ):
        onnxq.quantize(path, tmp_path / "q.onnx", "w8a16")
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("outputs", ["c, a", "c, t", "c, a, a", "c, t, t", "d, t, a"])
@pytest.mark.parametrize("opset", [15, 17, 19])
def test_what_a_body_passes_on_stays(opset: int, outputs: str) -> None:
    """Conditions and states that leave the body of a Loop as they came, in a function of this opset or another."""
    rest = ", q" if outputs.count(",") > 1 else ""
    kinds = {"c": "bool c", "d": "bool d", "a": "float[2,8] a", "t": "float[2,8] t"}
    typed = ", ".join(kinds[name] for name in outputs.split(", "))
    body = f"b (int64 i, bool c, float[2,8] a) => ({typed}) {{ d = Not(c) t = Neg(a) }}"
    loop = f"s{rest} = Loop(n, k, x) <body: graph = {body}>"
    local = f'<domain: "local", opset_import: ["" : {opset}]> F (x, n, k) => (y) {{ {loop} y = Exp(s) }}'
    constants = {"n": np.array(3), "k": np.array(True)}
    made = tiny.model(
        "g (float[2,8] x) => (y) { y = local.F(x, n, k) }", constants, opset=17, ir_version=8, functions=local
    )
    x, inlined = normal(2, 8), tiny.read(made)
    InlineFunctions()(inlined)
    assert not inlined.functions
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(Session(inlined.clone()).run({"x": x})[0], wanted)


@pytest.mark.parametrize(
    ("call", "function"),
    [
        ("F(x)", "F <a: float = 0.5> (x) => (y) { y = LeakyRelu<alpha: float = @a>(x) }"),
        ("F<a = 0.3>(x)", "F <a: float = 0.5> (x) => (y) { y = LeakyRelu<alpha: float = @a>(x) }"),
        ("F(x)", "F <a> (x) => (y) { y = LeakyRelu<alpha: float = @a>(x) }"),
        ("F(x)", "F <p: ints = [1, 0]> (x) => (y) { y = Transpose<perm: ints = @p>(x) }"),
        (
            "F(x)",
            'F <m: string = "reflect"> (x) => (y) '
            "{ p = Constant<value_ints = [1, 1, 1, 1]>() y = Pad<mode: string = @m>(x, p) }",
        ),
    ],
)
@pytest.mark.parametrize("opset", [15, 17, 19])
def test_attributes_of_functions_have_their_defaults(opset: int, call: str, function: str) -> None:
    local = f'<domain: "local", opset_import: ["" : {opset}]> {function}'
    made = tiny.model(f"g (float[2,8] x) => (y) {{ y = local.{call} }}", {}, opset=17, ir_version=8, functions=local)
    x, inlined = normal(2, 8), tiny.read(made)
    InlineFunctions()(inlined)
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(Session(inlined).run({"x": x})[0], wanted)


@pytest.mark.parametrize(
    ("opset", "island"), [(17, "ReduceMean<axes=[1]>(x)"), (18, "GroupNormalization<num_groups=1>(x, t, t)")]
)
def test_bodies_of_our_own_operators_are_raised_with_the_model(opset: int, island: str) -> None:
    """Islands are converted; others, whose attributes are those of a call, are written alike in any opset."""
    bodies = (f"Region(x, t) => (y) {{ y = {island} }}", "Recurrent<n>(x) => (y) { y = Softmax<axis: int=@n>(x) }")
    functions = "\n".join(f'<domain: "onnxq", opset_import: ["" : {opset}]> {body}' for body in bodies)
    text = "g (float[2,3,4] x, float[1] t) => (z) { y = onnxq.Region(x, t)  z = onnxq.Recurrent<n=2>(y) }"
    proto = tiny.model(text, opset=opset, functions=functions)
    proto.opset_import.append(helper.make_opsetid("onnxq", 1))
    made, feed = tiny.read(proto), {"x": normal(2, 3, 4), "t": np.float32([0.5])}
    wanted = Session(tiny.read(proto), library=False).run(feed)
    RaiseOpset(21)(made)
    assert {function.opset_imports[""] for function in made.functions.values()} == {21}
    for is_inlined in (False, True):
        np.testing.assert_allclose(Session(made, library=False).run(feed), wanted, rtol=1e-5)
        assert is_inlined == ("Softmax" in tiny.ops(made))
        InlinePass()(made)


@pytest.mark.parametrize(
    ("text", "opset", "what"),
    [
        (
            "g (float[1,5,3] x) => (y) { [n] y, s = Scan(l, x, x) <num_scan_inputs=1,"
            " body = b (float[3] h, float[3] e) => (h2, o) { h2 = Add(h, e)  o = Neg(h2) }> }",
            8,
            "node 'n' .Scan. runs over batches",
        ),
        (
            "g (double[2,4,3] x) => (y) { h = Cast<to=11>(t)  [n] y = GroupNormalization<num_groups=2>(x, h, h) }",
            18,
            "node 'n' .GroupNormalization. has a scale for each group, of doubles",
        ),
    ],
)
def test_what_no_higher_opset_computes_is_refused(text: str, opset: int, what: str) -> None:
    made = tiny.read(tiny.model(text, {"t": np.float32([0.5, 2]), "l": np.array([5])}, opset=opset, ir_version=8))
    before = tiny.ops(made)
    with pytest.raises(BadModel, match=f"cannot raise opset {opset} to 21: {what}"):
        RaiseOpset(21)(made)
    assert tiny.ops(made) == before
    assert graph.opset(made) == opset
