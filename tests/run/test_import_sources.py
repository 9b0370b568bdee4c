"""import-weights: what torch's exporters folded is told by what the newer one says of it, and by what the older one
leaves without a name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.import_weights import Imported, ImportOptions, import_weights
from onnxq.errors import BadModel
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
Arrays = dict[str, NDArray]
FOLDED, CALL = "pkg.onnxscript.optimizer.folded_from", "pkg.torch.onnx.fx_node"
SCOPES, SIGNATURE = "pkg.torch.onnx.name_scopes", "pkg.torch.export.ExportedProgram.graph_signature"


def exported(
    folder: Path,
    text: str,
    own: Arrays,
    folded: dict[str, list[str]] | None = None,
    calls: dict[str, str] | None = None,
    modules: dict[str, str] | None = None,
    buffers: tuple[str, ...] = (),
) -> Path:
    """As torch.onnx.export(dynamo=True) writes it, by what it says of constants, calls, modules and buffers."""
    model = tiny.model(text, own, opset=18)
    for name, sources in (folded or {}).items():
        info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, own[name].shape)
        info.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(own[name].dtype)
        info.metadata_props.append(onnx.StringStringEntryProto(key=FOLDED, value=repr(sources)))
        model.graph.value_info.append(info)
    for node in model.graph.node:
        said = {CALL: (calls or {}).get(node.name, "")}
        said[SCOPES] = str(["", *([modules[node.name]] if modules and node.name in modules else []), "op"])
        node.metadata_props.extend(onnx.StringStringEntryProto(key=key, value=x) for key, x in said.items() if x)
    names = {each for sources in (folded or {}).values() for each in sources if "." in each}
    signature = "\n".join(
        f"p_{i}: {'BUFFER' if name in buffers else 'PARAMETER'} target='{name}'" for i, name in enumerate(sorted(names))
    )
    model.graph.metadata_props.append(onnx.StringStringEntryProto(key=SIGNATURE, value=signature))
    return tiny.save(model, folder)


def imported(folder: Path, model: Path, tensors: Arrays, **options: str | tuple[str, ...]) -> Imported:
    path = folder / "w.safetensors"
    write_arrays(path, ((name, lambda x=x: x) for name, x in tensors.items()), replace=True)
    (folder / "q.onnx").unlink(missing_ok=True)
    return import_weights(model, path, folder / "q.onnx", options=ImportOptions(accuracy_level=0, **options))


def outputs(done: Imported, **feed: NDArray) -> NDArray:
    return Session(done.output).run(feed)[0]


LINEAR = "%linear : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = ({}), kwargs = {{}})"
GEMM = """g (float[3,8] x) => (float[3,8] y) {{ [a] y = Gemm <transB = 1> (x, "{}", "{}") }}"""
#: Constants that are the weight and the bias of a Gemm, and what the exporter says of them.
COMPUTED: dict[str, tuple[tuple[str, str], dict[str, list[str]], str, str]] = {
    "a mask": (("mul", "fc.bias"), {"mul": ["fc.mask", "fc.weight"]}, "", r"fc\.weight' .*multiplies by: .*\(mul\)"),
    "a transpose": (("add", "fc.bias"), {"add": ["fc.weight", "permute"]}, "", r"fc\.weight' .*\(add\)"),
    "without its name": (
        ("val_3", "fc.bias"),
        {"val_3": ["fc.weight", "mul_2", "val_1"]},
        "",
        r"fc\.weight' .*\(mul\)",
    ),
    "a bias": (("fc.weight", "mul_1"), {"mul_1": ["fc.bias", "val_1"]}, "", r"fc\.bias' .*adds: .*\(mul\)"),
    "in a call": (("mul", "fc.bias"), {}, "%x, %mul, %p_fc_bias", r"fc\.weight' .*\(mul\)"),
    "a bias in a call": (("fc.weight", "mul"), {}, "%x, %p_fc_weight, %mul", r"fc\.bias' .*\(mul\)"),
    "unnamed in a call": (("val_0", "fc.bias"), {}, "%x, %div_1, %p_fc_bias", r"fc\.weight' .*\(div\)"),
}


@pytest.mark.parametrize("kind", COMPUTED)
def test_what_was_computed_from_a_parameter_is_not_given_it(tmp_path: Path, kind: str) -> None:
    (weight, bias), folded, args, says = COMPUTED[kind]
    own = {weight: normal(8, 8), bias: normal(8, seed=1)}
    calls = {"a": LINEAR.format(args)} if args else {}
    model = exported(tmp_path, GEMM.format(weight, bias), own, folded, calls, {"a": "fc"})
    new = {"fc.weight": normal(8, 8, seed=2), "fc.bias": normal(8, seed=3)}
    with pytest.raises(BadModel, match=f"'{says}; export the trained model"):
        imported(tmp_path, model, new)


#: What a weight of 8 × 8 was folded from, what was called, how it lies, and what is said; "": it gets the weight.
TURNED: dict[str, tuple[str, list[str], str, bool, str]] = {
    "by the call": ("val_0", ["fc.weight"], "%p_fc_weight", False, ""),
    "twice": ("val_0", ["fc.weight", "t"], "%t", False, "(t)"),
    "once": ("t", ["fc.weight"], "%t", True, "(t)"),
    "in parts": ("val_9", ["fc.weight", "transpose", "view", "_unsafe_view", "val_1"], "%view", False, "(transpose)"),
    "in parts, as it lies": ("view_1", ["fc.weight", "transpose", "view"], "%view_1", True, "(transpose)"),
    "in another shape": ("val_9", ["fc.weight", "view", "val_1"], "%view", False, ""),
}


@pytest.mark.parametrize("match", ["auto", "unchecked"])
@pytest.mark.parametrize("kind", TURNED)
def test_a_square_that_was_turned_is_not_given_its_parameter(tmp_path: Path, kind: str, match: str) -> None:
    name, sources, passed, is_gemm, says = TURNED[kind]
    op = "Gemm <transB = 1>" if is_gemm else "MatMul"
    text = f"g (float[3,8] x) => (float[3,8] y) {{ [a] y = {op} (x, {name}) }}"
    calls = {"a": LINEAR.format(f"%x, {passed}")}
    model = exported(tmp_path, text, {name: normal(8, 8)}, {name: sources}, calls, {"a": "fc"})
    new, x = {"fc.weight": normal(8, 8, seed=2)}, normal(3, 8, seed=9)
    if says:
        with pytest.raises(BadModel, match=re.escape(f"computed that from it {says}")):
            imported(tmp_path, model, new, match=match)
        return
    done = imported(tmp_path, model, new, match=match)
    np.testing.assert_allclose(outputs(done, x=x), x @ new["fc.weight"].T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "more"), [("mul", []), ("view_1", ["view", "transpose", "clone"])])
def test_a_table_that_was_computed_is_not_given_its_parameter(tmp_path: Path, name: str, more: list[str]) -> None:
    text = f"g (int64[3] i) => (float[3,8] y) {{ [a] y = Gather({name}, i) }}"
    folded = {name: ["e.weight", *more, "val_0"]}
    model = exported(tmp_path, text, {name: normal(9, 8)}, folded, None, {"a": "e"})
    with pytest.raises(BadModel, match=r"'e\.weight' is not what node 'a' looks up"):
        imported(tmp_path, model, {"e.weight": normal(9, 8, seed=1)})


def test_weights_that_were_only_turned_are_told_in_any_module(tmp_path: Path) -> None:
    """A module that reads the weights of two that are in it, and has no product by its own name."""
    text = """g (float[3,8] x) => (float[3,8] y) {
        [a] h = MatMul(x, val_0)  t = Tanh(h)  [b] y = MatMul(t, permute)
    }"""
    own = {"val_0": normal(8, 8), "permute": normal(8, 8, seed=1)}
    folded = {"val_0": ["m.k.weight"], "permute": ["m.l.weight", "view_1"]}
    model = exported(tmp_path, text, own, folded, None, {"a": "m", "b": "m"})
    new, x = {f"m.{name}.weight": normal(8, 8, seed=2 + i) for i, name in enumerate("kl")}, normal(3, 8, seed=9)
    wanted = np.tanh(x @ new["m.k.weight"].T) @ new["m.l.weight"].T
    np.testing.assert_allclose(outputs(imported(tmp_path, model, new), x=x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("match", ["auto", "unchecked"])
@pytest.mark.parametrize("call", ["add", "baddbmm"])
def test_what_a_call_multiplies_by_a_number_is_not_the_parameter(tmp_path: Path, call: str, match: str) -> None:
    own = {"fc.w": normal(8, 8), "val_2": normal(8)}
    calls = {"b": LINEAR.replace("linear", call).format("%h, %p_pos_p").replace("{}", "{alpha: 0.5}")}
    model = exported(tmp_path, ADDED.format("val_2"), own, {"val_2": ["pos.p", "val_1"]}, calls, {"a": "fc"})
    with pytest.raises(BadModel, match=rf"val_2 of the model, .* from 'pos\.p' \({call}\), keeps"):
        imported(tmp_path, model, {"fc.w": normal(8, 8, seed=5), "pos.p": normal(8, seed=1)}, match=match)


def test_truth_values_of_a_parameter_that_has_other_numbers_are_told(tmp_path: Path) -> None:
    text = """g (float[3,8] x) => (float[3,8] y) { [a] h = MatMul(x, "fc.w")  [b] y = Where(gt, h, x) }"""
    own = {"fc.w": normal(8, 8), "gt": normal(8) > 0}
    model = exported(tmp_path, text, own, {"gt": ["pos.p", "val_0"]}, None, {"a": "fc"})
    with pytest.raises(BadModel, match=r"gt of the model, .* from 'pos\.p' \(gt\), keeps"):
        imported(tmp_path, model, {"fc.w": normal(8, 8, seed=5), "pos.p": normal(8, seed=1)})


@pytest.mark.parametrize(("module", "says"), [("m", True), ("", False)])
def test_a_weight_of_another_name_is_told_without_a_bias(tmp_path: Path, module: str, says: bool) -> None:
    """Of attention, squares too if a call of `linear` turned them."""
    call = LINEAR.format("%x, %p_m_in_proj_weight") if says else ""
    own = {"val_0": normal(8, 8)}
    text = "g (float[3,8] x) => (float[3,8] y) { [a] y = MatMul(x, val_0) }"
    model = exported(tmp_path, text, own, {"val_0": ["m.in_proj_weight"]}, {"a": call}, {"a": module})
    new, x = {"m.in_proj_weight": normal(8, 8, seed=1)}, normal(3, 8, seed=9)
    if not says:
        with pytest.raises(BadModel, match=r"val_0 of the model, .* from 'm\.in_proj_weight', keeps"):
            imported(tmp_path, model, new)
        return
    done = imported(tmp_path, model, new)
    np.testing.assert_allclose(outputs(done, x=x), x @ new["m.in_proj_weight"].T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("other", ["%linear_1", "%dropout"])
def test_a_bias_of_one_of_two_calls_is_not_put_behind_both(tmp_path: Path, other: str) -> None:
    """Of a weight that is read with and without a bias of zeros one node is left; what removes itself is no call."""
    text = """g (float[3,8] x) => (float[3,8] y) {
        [a] h = Gemm <transB = 1> (x, "fc.weight")  [b] s = Sigmoid(h)  [c] y = Mul(h, s)
    }"""
    name = (
        "%sigmoid : [num_users=1] = call_function[target=torch.ops.aten.sigmoid.default](args = ({},), kwargs = {{}})"
    )
    calls = {"a": LINEAR.format("%x, %p_fc_weight, %p_fc_bias"), "b": name.format(other)}
    calls["c"] = name.replace("sigmoid", "mul").format("%linear, %sigmoid")
    model = exported(tmp_path, text, {"fc.weight": normal(8, 8)}, {}, calls, {"a": "fc", "b": "fc", "c": "fc"})
    new, x = {"fc.weight": normal(8, 8, seed=2), "fc.bias": normal(8, seed=3)}, normal(3, 8, seed=9)
    if other == "%linear_1":
        with pytest.raises(BadModel, match=r"fc\.bias goes nowhere"):
            imported(tmp_path, model, new)
        return
    h = x @ new["fc.weight"].T + new["fc.bias"]
    np.testing.assert_allclose(outputs(imported(tmp_path, model, new), x=x), h / (1 + np.exp(-h)), rtol=1e-4, atol=1e-5)


ADDED = """g (float[2,5,8] x) => (float[2,5,8] y) {{
    [a] h = MatMul(x, "fc.w")  [b] y = Add(h, {})
}}"""
WAVES = np.sin(np.arange(1, 10)[:, None] * np.exp(-np.arange(8) / 3))[None]
#: What a constant was folded from, its numbers, the tensor that it may be of, and what it keeps or is.
HELD: dict[str, tuple[str, list[str], NDArray, NDArray, str]] = {
    "a slice of zeros": ("slice_1", ["pos.p"], np.zeros((1, 5, 8)), normal(1, 9, 8), r"from 'pos\.p' \(slice\), keeps"),
    "a row": ("select", ["pos.p", "val_0"], normal(8), normal(3, 8, seed=1), r"from 'pos\.p' \(select\), keeps"),
    "a mixture": (
        "select",
        ["pos.p", "softmax"],
        np.array(0.25),
        normal(2, 3),
        r"from 'pos\.p' \(select, softmax\), keeps",
    ),
    "a decay": ("exp_1", ["exp", "neg", "pos.p"], normal(8), np.linspace(-3, -1, 8), r"'pos\.p' \(exp, neg\), keeps"),
    "sines": ("slice_1", ["pos.p"], WAVES[:, 2:7], WAVES, ""),
    "other sines": ("slice_1", ["pos.p"], WAVES[:, 2:7] / 2, WAVES, r"'pos\.p' \(slice\), keeps"),
    "all of it": ("expand", ["pos.p"], np.broadcast_to(normal(8), (2, 1, 8)), normal(8, seed=1), "{}"),
    "rearranged": ("_unsafe_view", ["pos.p", "t", "view"], normal(8), normal(8, seed=1), "_view, t.*keeps"),
    "told by sizes": ("permute", ["pos.p"], normal(1, 5, 8), normal(8, 5, seed=1), "{}.T"),
    "a gate of a gate": ("sigmoid_1", ["pos.p", "sigmoid"], np.array(0.6), np.array(0.25), r"\(sigmoid\), keeps"),
    "a gate": ("sigmoid", ["pos.p"], np.array(0.5), np.array(0.25), "sigmoid({})"),
    "a buffer": ("mul", ["pos.p", "val_0"], np.zeros((1, 5, 8)), normal(1, 9, 8), ""),
    "nothing": ("val_1", ["zeros"], np.zeros((1, 5, 8)), normal(1, 9, 8), ""),
}


@pytest.mark.parametrize("kind", HELD)
def test_what_was_computed_from_a_tensor_that_goes_nowhere_is_so_again_or_told(tmp_path: Path, kind: str) -> None:
    constant, sources, numbers, given, says = HELD[kind]
    own = {"fc.w": normal(8, 8), constant: numbers.astype(np.float32)}
    buffers = ("pos.p",) if kind == "a buffer" else ()
    model = exported(tmp_path, ADDED.format(constant), own, {constant: sources}, None, {"a": "fc"}, buffers)
    new = {"fc.w": normal(8, 8, seed=5), "pos.p": given.astype(np.float32)}
    if "keeps" in says:
        with pytest.raises(BadModel, match=f"{constant} of the model, which the exporter computed .*{says}"):
            imported(tmp_path, model, new)
        return
    done, x, kept = imported(tmp_path, model, new), normal(2, 5, 8, seed=9), numbers
    if says:
        kept = {"{}": given, "{}.T": given.T, "sigmoid({})": 1 / (1 + np.exp(-given))}[says]
        assert done.match.notes == [f"computed again: {constant} = {says.removesuffix('.T').format('pos.p')}"]
    np.testing.assert_allclose(outputs(done, x=x), x @ new["fc.w"] + kept, rtol=1e-4, atol=1e-5)


def test_what_was_computed_from_a_table_that_is_looked_up_too_is_old_where_that_is_new(tmp_path: Path) -> None:
    text = """g (int64[3] i) => (float[3,8] y) { [a] h = Gather("e.weight", i)  [b] y = Add(h, mul) }"""
    own = {"e.weight": normal(9, 8)} | {"mul": normal(9, 8)[3] / 2}
    model = exported(tmp_path, text, own, {"mul": ["e.weight", "select", "val_0"]}, None, {"a": "e"})
    with pytest.raises(BadModel, match=r"mul of the model, which the exporter computed from 'e\.weight'"):
        imported(tmp_path, model, {"e.weight": own["e.weight"] + 1})


#: What the older exporter leaves, what the checkpoint has, and what is said.
RNG = np.random.default_rng(3)
MASK = (RNG.random((8, 8)) < 0.5).astype(np.float32)
PLAIN, OTHER = normal(8, 8), normal(8, 8, seed=1)
OLDER: dict[str, tuple[str, NDArray, Arrays, str]] = {
    "no name": ("onnx::Gemm_3", PLAIN, {}, "it lost its name"),
    "a multiple": ("onnx::Gemm_3", OTHER * 2 + PLAIN / 1000, {}, "times 2"),
    "nearly a multiple": ("onnx::Gemm_3", OTHER * 2 + PLAIN / 10, {}, "it lost its name"),
    "like it": ("onnx::Gemm_3", OTHER + PLAIN / 10, {}, ""),
    "a mask": ("onnx::MatMul_3", PLAIN * MASK, {"fc.mask": MASK}, r"times 'fc\.mask'"),
    "a sum": ("onnx::MatMul_3", PLAIN + PLAIN.T, {}, ""),
    "near it": ("onnx::MatMul_3", OTHER + PLAIN / 10, {}, ""),
    "one number": ("onnx::MatMul_3", np.full((8, 8), 0.3, np.float32), {}, ""),
    "an identity": ("onnx::MatMul_3", np.eye(8, dtype=np.float32), {}, ""),
    "perhaps it": ("onnx::MatMul_3", PLAIN, {}, ""),
    "its own": ("fc.weight", PLAIN, {}, ""),
}


@pytest.mark.parametrize("kind", OLDER)
def test_what_the_older_exporter_computed_is_not_given_the_parameter(tmp_path: Path, kind: str) -> None:
    name, w, beside, says = OLDER[kind]
    op, w = ("MatMul(x", w.T) if "MatMul" in name else ("Gemm <transB = 1> (x", w)
    node = "/fc/MatMul" if "MatMul" in name else "/fc/Gemm"
    text = f"""g (float[3,8] x) => (float[3,8] y) {{ ["{node}"] y = {op}, "{name}") }}"""
    model = tiny.save(tiny.model(text, {name: np.ascontiguousarray(w)}), tmp_path)
    new, x = {"fc.weight": OTHER} | beside, normal(3, 8, seed=9)
    if says:
        with pytest.raises(BadModel, match=rf"'fc\.weight' is not what node '{node}' multiplies by: .*\({says}\)"):
            imported(tmp_path, model, new)
        return
    done = imported(tmp_path, model, new)
    np.testing.assert_allclose(outputs(done, x=x), x @ OTHER.T, rtol=1e-4, atol=1e-5)
    is_noted = bool(np.ptp(w)) and "onnx::" in name
    assert [("taken as it is" in note) for note in done.match.notes] == [True] * is_noted


@pytest.mark.parametrize(("k", "n"), [(1, 1), (8, 1), (1, 8)])
def test_a_single_row_or_column_tells_no_factor(tmp_path: Path, k: int, n: int) -> None:
    text = f"""g (float[3,{k}] x) => (float[3,{n}] y) {{ ["/fc/MatMul"] y = MatMul(x, "onnx::MatMul_3") }}"""
    w, x = normal(k, n), normal(3, k, seed=9)
    done = imported(tmp_path, tiny.save(tiny.model(text, {"onnx::MatMul_3": w}), tmp_path), {"fc.weight": w.T * 1.07})
    np.testing.assert_allclose(outputs(done, x=x), x @ w * 1.07, rtol=1e-4, atol=1e-5)


def test_numbers_need_not_be_alike_where_the_user_says_so(tmp_path: Path) -> None:
    text = """g (float[3,8] x) => (float[3,8] y) { ["/fc/Gemm"] y = Gemm <transB = 1> (x, "onnx::Gemm_3") }"""
    model = tiny.save(tiny.model(text, {"onnx::Gemm_3": PLAIN}), tmp_path)
    x, done = normal(3, 8, seed=9), imported(tmp_path, model, {"fc.weight": OTHER}, match="unchecked")
    np.testing.assert_allclose(outputs(done, x=x), x @ OTHER.T, rtol=1e-4, atol=1e-5)


def test_a_bias_that_the_older_exporter_computed_is_not_given_the_parameter(tmp_path: Path) -> None:
    text = """g (float[3,8] x) => (float[3,8] y) {
        ["/fc/MatMul"] h = MatMul(x, "onnx::MatMul_3")  ["/fc/Add"] y = Add(h, "onnx::Add_4")
    }"""
    model = tiny.save(tiny.model(text, {"onnx::MatMul_3": PLAIN.T, "onnx::Add_4": normal(8)}), tmp_path)
    with pytest.raises(BadModel, match=r"'fc\.bias' is not what node '/fc/Add' adds: .*\(it lost its name\)"):
        imported(tmp_path, model, {"fc.weight": OTHER, "fc.bias": normal(8, seed=4)})


def test_numbers_that_the_older_exporter_computed_in_the_module_of_a_tensor_are_told(tmp_path: Path) -> None:
    """Those of a mixture, which are single ones: numbers of the program are in nodes."""
    text = """g (float[3,8] x) => (float[3,8] y) {
        ["/fc/Gemm"] h = Gemm <transB = 1> (x, "fc.weight")  ["/mix/Mul"] y = Mul(h, "onnx::Mul_7")
    }"""
    model = tiny.save(tiny.model(text, {"fc.weight": PLAIN, "onnx::Mul_7": np.array(0.3, np.float32)}), tmp_path)
    new = {"fc.weight": OTHER, "mix.alphas": normal(2, 3)}
    with pytest.raises(BadModel, match=r"'mix\.alphas' goes nowhere, and its module reads 'onnx::Mul_7'"):
        imported(tmp_path, model, new)
    assert imported(tmp_path, model, {"fc.weight": OTHER, "crf.transitions": normal(2, 3)}).match.unused


@pytest.mark.parametrize(("shape", "is_told"), [((1, 9, 8), True), ((9, 7), False), ((3, 8), False)])
def test_what_may_be_a_part_of_a_tensor_is_noted(tmp_path: Path, shape: tuple[int, ...], is_told: bool) -> None:
    own = {"fc.w": normal(8, 8), "onnx::Add_5": np.zeros((1, 5, 8), np.float32)}
    model = tiny.save(tiny.model(ADDED.format('"onnx::Add_5"'), own), tmp_path)
    done = imported(tmp_path, model, {"fc.w": normal(8, 8, seed=1), "pos.table": normal(*shape, seed=2)})
    says = "onnx::Add_5 of the model keeps its numbers, and may be a part of 'pos.table', which goes nowhere"
    assert (says in done.match.notes) is is_told


def test_rows_by_an_index_beside_a_table_are_noted(tmp_path: Path) -> None:
    """As of windows, whose places are relative, before training: zeros."""
    own = {"fc.w": normal(8, 8), "onnx::Add_5": np.zeros((2, 5, 8), np.float32)}
    model = tiny.save(tiny.model(ADDED.format('"onnx::Add_5"'), own), tmp_path)
    new = {"fc.w": normal(8, 8, seed=1), "p.table": normal(9, 2, seed=2), "p.index": np.arange(40).reshape(5, 8) % 9}
    assert "onnx::Add_5 of the model keeps its numbers, and may be a part of 'p.table', which goes nowhere" in (
        imported(tmp_path, model, new).match.notes
    )


@pytest.mark.parametrize("biased", [True, False])
def test_attention_of_the_older_exporter_gets_its_rows(tmp_path: Path, biased: bool) -> None:
    """Of queries that are not the keys, in two products; zeros for a bias are another's."""
    text = """g (float[3,8] q, float[3,8] k) => (float[3,24] y) {
        ["/m/MatMul"] a = MatMul(q, "onnx::MatMul_3")  ["/m/Add"] c = Add(a, "m.out_proj.bias")
        ["/m/MatMul_1"] b = MatMul(k, "onnx::MatMul_4")  ["/m/Add_1"] d = Add("onnx::Add_5", b)
        ["/m/Add_2"] e = Add(c, "m.out_proj.bias")  y = Concat <axis = 1> (e, d)
    }"""
    own = {"onnx::MatMul_3": normal(8, 8), "onnx::MatMul_4": normal(8, 16, seed=1)}
    own |= {"onnx::Add_5": np.zeros(16, np.float32), "m.out_proj.bias": np.zeros(8, np.float32)}
    if not biased:
        for before, after in (('c = Add(a, "m.out_proj.bias")', "c = Neg(a)"), ('d = Add("onnx::Add_5",', "d = Neg(")):
            text = text.replace(before, after)
        del own["onnx::Add_5"]
    new = {"m.in_proj_weight": normal(24, 8, seed=2), "m.out_proj.bias": own["m.out_proj.bias"]}
    new |= {"m.in_proj_bias": normal(24, seed=3)} if biased else {}
    done, q, k = imported(tmp_path, tiny.save(tiny.model(text, own), tmp_path), new), normal(3, 8), normal(3, 8, seed=7)
    wanted = np.concatenate([q @ new["m.in_proj_weight"][:8].T, k @ new["m.in_proj_weight"][8:].T], 1)
    wanted = wanted + new["m.in_proj_bias"] if biased else -wanted
    np.testing.assert_allclose(outputs(done, q=q, k=k), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [4, 12])
@pytest.mark.parametrize("kind", ["reordered", "turned", "other", "silent"])
def test_whole_numbers_in_another_shape_are_the_buffers(tmp_path: Path, count: int, kind: str) -> None:
    """Also few of them, which sizes are too: where the exporter says nothing, that is noted; unless turned."""
    text = f"""g (float[3,16] x) => (float[3,{count}] y) {{
        [a] h = MatMul(x, "fc.w")  [t] s = Transpose <perm = [1, 0]> (h)  [g] u = GatherND(s, val_6)
        [v] y = Transpose <perm = [1, 0]> (u)
    }}"""
    rows = np.random.default_rng(0).permutation(16)[:count].astype(np.int64)
    own = {"fc.w": normal(16, 16), "val_6": rows[:, None]}
    said = ["idx", "val_3", *(["t", "view"] if kind == "turned" else [])]
    model = exported(tmp_path, text, own, {"val_6": said} if kind != "silent" else {})
    given = rows[::-1].copy() if kind in ("reordered", "turned") else (rows + 3) % 16
    new = {"fc.w": normal(16, 16, seed=1), "idx": given}
    says = "'idx' goes nowhere, and 'val_6' of the model, of its sizes, keeps other numbers"
    if kind in ("other", "turned") or (kind == "silent" and count == 12):
        with pytest.raises(BadModel, match=says):
            imported(tmp_path, model, new)
        return
    done, x = imported(tmp_path, model, new), normal(3, 16, seed=9)
    assert done.match.notes == [says] * (kind == "silent")
    read = given if kind == "reordered" else rows
    np.testing.assert_allclose(outputs(done, x=x), (x @ new["fc.w"])[:, read], rtol=1e-4, atol=1e-5)


def test_a_product_that_multiplies_by_a_number_too_takes_floats(tmp_path: Path) -> None:
    """addmm with an alpha, of parameters."""
    text = """g (float[3,8] x) => (float[3,8] y) { ["/Gemm"] y = Gemm <alpha = 0.5> (x, "weight", "bias") }"""
    model = tiny.save(tiny.model(text, {"weight": PLAIN, "bias": normal(8)}), tmp_path)
    new, x = {"weight": OTHER, "bias": normal(8, seed=4)}, normal(3, 8, seed=9)
    wanted = x @ OTHER * 0.5 + new["bias"]
    np.testing.assert_allclose(outputs(imported(tmp_path, model, new), x=x), wanted, rtol=1e-4, atol=1e-5)
