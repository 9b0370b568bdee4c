"""import-weights: what was trained does not vanish where the model has what stands around it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from test_import_batchnorms import CALLS, trained, untrained
from test_import_computed import exported, imported, save
from tiny import normal

from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.checkpoints.matching import leftovers
from onnxq.checkpoints.tensors import Unreadable
from onnxq.cli import main
from onnxq.errors import BadModel, OnnxqError
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
VECTOR, MATRIX, NUMBER = normal(6, seed=1), normal(6, 5, seed=2), normal(1, seed=3)
WORDS = "though the model has what stands around"

#: What goes nowhere beside what is used, and what is said of it; nothing: it is let through.
TRAINED: dict[str, tuple[list[str], dict[str, NDArray], str]] = {
    "a bias": (["c.weight"], {"c.bias": VECTOR}, rf"^c\.bias goes nowhere, {WORDS}"),
    "a matrix of its module": (["c.in_proj_bias"], {"c.in_proj_weight": MATRIX}, WORDS),
    "a norm of a block": (["m.layers.0.mlp.fc.weight"], {"m.layers.0.norm.weight": VECTOR}, WORDS),
    "a layer of a block": (
        ["m.layers.0.mlp.fc.weight"],
        {"m.layers.0.cross.k.weight": MATRIX, "m.layers.0.cross.k.bias": VECTOR},
        "",
    ),
    "a norm beside layers": (["head.fc.weight"], {"head.norm.weight": VECTOR}, WORDS),
    "a norm of the whole": (
        ["fc.weight"],
        {"norm.weight": VECTOR, "norm.bias": VECTOR + 1},
        "^norm.weight, norm.bias go",
    ),
    "a vector of the whole": (["fc.weight"], {"scale": VECTOR}, "^scale goes nowhere"),
    "three numbers": (["l.0.weight"], {"l.1.mix.w": VECTOR[:3], "l.1.mix.fc.weight": MATRIX}, ""),
    "a small vector": (["a.weight"], {"w": VECTOR[:3]}, "^w goes nowhere"),
    "a number": (["a.weight"], {"t": NUMBER}, "^t goes nowhere"),
    "a frozen BatchNorm": (
        ["block.conv.weight"],
        {f"block.bn.{word}": np.abs(VECTOR) for word in ("running_mean", "running_var", "weight")},
        r"^the BatchNorm block\.bn goes nowhere, and nothing tells where the model has it; export it with it",
    ),
    "an adapter beside its layer": (
        ["a.weight"],
        {"a.lora_A": MATRIX, "a.lora_B": MATRIX},
        "^a.lora_A, a.lora_B are of an",
    ),
    "an adapter around its layer": (
        ["a.base_layer.weight"],
        {"a.lora_A.default.weight": MATRIX},
        r"^a\.lora_A\.default\.weight is of an adapter that is not merged: save .* with `onnxq lora merge`$",
    ),
    "a block that the model lacks": (["m.layers.0.fc.weight"], {"m.layers.1.fc.weight": MATRIX}, ""),
    "a head": (["body.fc.weight"], {"head.weight": MATRIX, "head.bias": VECTOR}, ""),
    "a head of several": (["body.fc.weight"], {"head.fc.weight": MATRIX, "head.norm.weight": VECTOR}, ""),
    "one tower of two": (["image.fc.weight", "p.weight"], {"text.fc.weight": MATRIX, "logit_scale": NUMBER}, ""),
    "zeros": (["c.weight"], {"c.bias": 0 * VECTOR}, ""),
    "ones": (["c.bias"], {"c.weight": 0 * VECTOR + 1}, ""),
    "a copy": (["c.weight"], {"c.old": "c.weight"}, ""),  # type: ignore[dict-item]
    "frequencies": (["layers.0.q.weight"], {"layers.0.rotary.inv_freq": 10.0 ** -np.arange(8)}, ""),
    "a mask with infinity": (["a.weight"], {"a.mask": np.triu(np.full((9, 9), -np.inf))}, ""),
    "a token of training": (["e.cls_token"], {"e.mask_token": VECTOR}, ""),
    "weights of a loss": (["fc.weight"], {"criterion.weight": VECTOR}, ""),
    "a scale of activations": (["fc.weight"], {"fc.input_scale": NUMBER}, ""),
}


@pytest.mark.parametrize("kind", TRAINED)
def test_what_stands_around_tells_whether_a_tensor_may_go_nowhere(kind: str) -> None:
    used, gone, words = TRAINED[kind]
    tensors: dict[str, NDArray] = {name: normal(6, 5, seed=9 + i) for i, name in enumerate(used)}
    for name, x in gone.items():
        tensors[name] = tensors[x] if isinstance(x, str) else x.astype(np.float32)
    told = leftovers.vanished(tensors, list(gone), ())
    assert len(told) == bool(words)
    for sentence in told:
        with pytest.raises(BadModel, match=words):
            raise BadModel(sentence)


def test_of_many_some_are_named() -> None:
    tensors = {"a.weight": normal(6, 5)} | {f"v{i}": normal(6, seed=i) for i in range(50)}
    (told,) = leftovers.vanished(tensors, [f"v{i}" for i in range(50)], ())
    assert told.startswith("v0, v1, v2, v3 and 46 others go nowhere")


def test_what_something_else_is_said_of_is_not_said_again() -> None:
    assert not leftovers.vanished({"a.weight": normal(6, 5), "a.bias": normal(6)}, ["a.bias"], ["a.bias"])


def test_the_norm_that_an_exporter_merged_with_another_is_refused(tmp_path: Path) -> None:
    """Of two norms of one value, equal before training, it keeps one."""
    text = """g (float[3,8] x) => (float[3,8] y) {
        [n] h = LayerNormalization(x, "q_norm.weight", "q_norm.bias")
        [a] q = MatMul(h, "q.w")  [b] k = MatMul(h, "k.w")
        y = Mul(q, k)
    }"""
    own = {f"{part}.w": normal(8, 8, seed=i) for i, part in enumerate("qk")}
    norm = {"q_norm.weight": np.ones(8, np.float32), "q_norm.bias": np.zeros(8, np.float32)}
    model = exported(tmp_path, text, own | norm, {"n": "q_norm"})
    new = own | {f"{part}_norm.{word}": normal(8, seed=i) for i, part in enumerate("qk") for word in ("weight", "bias")}
    with pytest.raises(
        BadModel, match=rf"k_norm\.weight, k_norm\.bias go nowhere, {WORDS}.*--partial imports the rest"
    ):
        imported(tmp_path, model, new)


def calling(model: Path, args: str, op: str = "conv1d") -> Path:
    """With what torch's exporter says of the convolutions or products that it called."""
    made = onnx.load(model)
    for node in made.graph.node:
        if "Conv" in node.op_type or op != "conv1d":
            call = f"%c : call_function[target=torch.ops.aten.{op}.default](args = ({args}), kwargs = {{}})"
            node.metadata_props.append(onnx.StringStringEntryProto(key="pkg.torch.onnx.fx_node", value=call))
    onnx.save(made, model)
    return model


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("says_module", [False, True])
def test_a_bias_that_was_zero_is_put_back(tmp_path: Path, op: str, says_module: bool) -> None:
    """torch's newer exporter removes it; a module that runs twice has it twice."""
    text = f"""g (float[1,4,6] x) => (float[1,4,6] y) {{
        [c] h = {op} (x, "m.c.weight")  r = Relu(h)  [d] y = {op} (r, "m.c.weight")
    }}"""
    model = exported(tmp_path, text, {"m.c.weight": normal(4, 4, 1)}, dict.fromkeys("cd", "m.c") if says_module else {})
    calling(model, "%x, %p_m_c_weight, %p_m_c_bias, [1]")
    new = {"c.weight": normal(4, 4, 1, seed=1), "c.bias": normal(4, seed=2)}
    done = imported(tmp_path, model, new)
    assert not done.match.unused
    x = normal(1, 4, 6, seed=3)
    w = new["c.weight"][..., 0] if op == "Conv" else new["c.weight"][..., 0].T
    wanted = x
    for i in range(2):
        wanted = w @ np.maximum(wanted, 0 if i else -np.inf) + new["c.bias"][:, None]
    np.testing.assert_allclose(Session(done.output).run({"x": x})[0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "args"),
    [("other", "%x, %p_c_weight, %p_c_bias"), ("c", "%x, %p_c_weight"), ("c", "%x, %p_c_weight, %mul"), ("c", "")],
    ids=["read by another", "added elsewhere", "computed", "not said"],
)
def test_a_bias_is_only_put_back_where_it_was(tmp_path: Path, module: str, args: str) -> None:
    text = """g (float[1,4,6] x) => (float[1,4,6] y) { [c] y = Conv (x, "c.weight") }"""
    model = calling(exported(tmp_path, text, {"c.weight": normal(4, 4, 1)}, {"c": module}), args)
    with pytest.raises(BadModel, match=rf"c\.bias goes nowhere, {WORDS}.*\(--without 'c\.bias'\)"):
        imported(tmp_path, model, {"c.weight": normal(4, 4, 1), "c.bias": normal(4, seed=2)})


@pytest.mark.parametrize("op", ["Gemm <transB = 1>", "MatMul"])
@pytest.mark.parametrize("args", ["", "%x, %p_c_weight", "%x, %p_c_weight, %p_c_bias", "another"])
def test_the_bias_of_a_product_is_put_where_it_was(tmp_path: Path, op: str, args: str) -> None:
    """Not where only the weight of a module is read, as in ArcFace's head or where a bias of zeros was added by another
    call, nor in the place of another tensor's."""
    add = 'y = Add(h, "shift")' if args == "another" else "y = Neg(h)"
    text = f"""g (float[2,8] x) => (float[2,4] y) {{ [c] h = {op} (x, "c.weight") {add} }}"""
    own, new = ({"c.weight": normal(4, 8, seed=i), "shift": normal(4, seed=i + 2)} for i in (0, 1))
    w = own["c.weight"] if op != "MatMul" else own["c.weight"].T.copy()
    shift = {"shift": own["shift"]} if args == "another" else {}
    model = exported(tmp_path, text, {"c.weight": w} | shift, {"c": "c"})
    calling(model, "" if args == "another" else args, "linear")
    new = {"c.weight": new["c.weight"], "c.bias": normal(4, seed=5)} | {each: new[each] for each in shift}
    if args.count(",") < 2:
        with pytest.raises(BadModel, match=rf"c\.bias goes nowhere, {WORDS}.*\(--without 'c\.bias'\)"):
            imported(tmp_path, model, new)
        return
    done, x = imported(tmp_path, model, new), normal(2, 8, seed=6)
    assert not done.match.unused
    wanted = -(x @ new["c.weight"].T + new["c.bias"])
    np.testing.assert_allclose(Session(done.output).run({"x": x})[0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("computed", ["weight", "running_var"])
def test_a_batchnorm_of_computed_numbers_is_not_the_checkpoint_s(tmp_path: Path, computed: str) -> None:
    """As 1 + weight: it was folded by the weight itself, 3 dB."""
    part = "%b_bn_running_var" if computed == "running_var" else "%p_bn_weight"
    model = untrained(tmp_path, CALLS["torch 2.7"].format(1e-5).replace(part, "%add"))
    with pytest.raises(BadModel, match="the BatchNorm bn goes nowhere"):
        import_weights(model, trained(tmp_path)[0], tmp_path / "q.onnx")


def test_what_the_model_has_nothing_of_is_not_read(tmp_path: Path) -> None:
    text = """g (float[1,4,6] x) => (float[1,4,6] y) { [c] y = Conv (x, "c.weight") }"""
    model, kernel = exported(tmp_path, text, {"c.weight": normal(4, 4, 1)}, {"c": "c"}), normal(4, 4, 1, seed=1)
    new = {"c.weight": kernel, "c.bias": normal(4, seed=2), "norm.weight": normal(4, seed=3)}
    path, made = save(tmp_path / "w.safetensors", new), tmp_path / "q.onnx"
    for name, words in (
        ("[c].bias", "called '[c].bias'"),
        ("c.*s", "norm.weight goes nowhere"),
        ("norm.?eight", "c.bias goes"),
        ("d.*", "called 'd.*'"),
    ):
        with pytest.raises(OnnxqError, match=re.escape(words)):
            import_weights(model, path, made, options=ImportOptions(without=(name,)))
    words = ["import-weights", str(model), str(path), "-o", str(made), "--without", "c.b*", "--without", "norm.weight"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    x = normal(1, 4, 6, seed=3)
    np.testing.assert_allclose(Session(made).run({"x": x})[0], kernel[..., 0] @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mask", "of_another_name"])
@pytest.mark.parametrize("place", [1, 3])
def test_infinity_is_a_number_where_the_model_has_it_too(tmp_path: Path, name: str, place: int) -> None:
    """Masks are buffers that torch's users fill with it; where a checkpoint alone holds it, it is damaged."""
    text = """g (float[2,4] x) => (float[2,4] y) { [c] h = MatMul(x, "c.w")  y = Add(h, mask) }"""
    mask, other = np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32)
    mask[0, 1:] = other[0, place:] = -np.inf
    model = exported(tmp_path, text, {"c.w": normal(4, 4), "mask": mask}, {})
    new = {"c.w": normal(4, 4, seed=1), name: other}
    done, x = imported(tmp_path, model, new), normal(2, 4, seed=2)
    wanted = x @ new["c.w"] + (other if name == "mask" else mask)
    np.testing.assert_allclose(Session(done.output).run({"x": x})[0], wanted, rtol=1e-5, atol=1e-5)
    mask[0, 1:] = 1
    model = exported(tmp_path, text, {"c.w": normal(4, 4), "mask": mask}, {})
    if name == "mask":
        with pytest.raises(BadModel, match="'mask' holds numbers that are not finite"):
            imported(tmp_path, model, new)


@pytest.mark.parametrize("kind", ["Conv", "LayerNormalization"])
def test_constants_that_callers_may_replace_get_the_checkpoint_s_too(tmp_path: Path, kind: str) -> None:
    """They are inputs as well, as torch's older exporter writes them where it is told to."""
    x, sizes = ("1,4,6", (4, 4, 1)) if kind == "Conv" else ("1,6,4", (4,))
    text = f"""g (float[{x}] x) => (float[{x}] y) {{ y = {kind} (x, "c.weight", "c.bias") }}"""
    made = onnx.load(exported(tmp_path, text, {"c.weight": normal(*sizes), "c.bias": normal(4)}, {}))
    for tensor in made.graph.initializer:
        made.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, tensor.dims))
    onnx.save(made, tmp_path / "inputs.onnx")
    new = {"c.weight": normal(*sizes, seed=1), "c.bias": normal(4, seed=2)}
    done = imported(tmp_path, tmp_path / "inputs.onnx", new)
    assert sorted(done.match.constants) == sorted(new)
    wanted = Session(exported(tmp_path, text, new, {})).run({"x": normal(1, 4, 6).reshape(*map(int, x.split(",")))})
    found = Session(done.output).run({"x": normal(1, 4, 6).reshape(*map(int, x.split(",")))})
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["C64", "F4", "rotary"])
def test_numbers_that_no_model_has_here_do_not_keep_others_from_being_read(tmp_path: Path, kind: str) -> None:
    """Rotary frequencies as complex numbers are buffers; others may be trained, and of some types numpy has none."""
    text = """g (float[2,4] x) => (float[2,4] y) { [c] y = MatMul(x, "c.w") }"""
    model, path = exported(tmp_path, text, {"c.w": normal(4, 4)}, {"c": "c"}), tmp_path / "w.safetensors"
    angles = np.exp(1j * normal(4)) if kind == "rotary" else normal(4) + 1j * normal(4, seed=1)
    save(path, {"c.w": normal(4, 4, seed=1), "c.turns": angles.astype(np.complex64)})
    if kind == "F4":
        path.write_bytes(path.read_bytes().replace(b'"C64"', b'"F_4"'))
    if kind == "rotary":
        assert import_weights(model, path, tmp_path / "q.onnx").match.unused == ["c.turns"]
        return
    other = path.read_bytes().replace(b"c.turns", b"o.turns")
    (tmp_path / "other.safetensors").write_bytes(other)
    if kind == "F4":  # of a part that the model lacks
        assert import_weights(model, tmp_path / "other.safetensors", tmp_path / "o.onnx").match.unused == ["o.turns"]
    words = "c.turns goes nowhere" if kind == "C64" else "type F_4, which numpy does not have"
    with pytest.raises(OnnxqError, match=words):
        import_weights(model, path, tmp_path / "q.onnx")
    import_weights(model, path, tmp_path / "q.onnx", options=ImportOptions(without=("c.turns",)))


PERMUTED = """g (float[2,8] x) => (float[2,8] y) { [a] h = MatMul(x, "a.w")  y = Gather <axis = 1> (h, ORDER) }"""


def test_a_permutation_is_the_checkpoints(tmp_path: Path) -> None:
    weight, order = normal(8, 8), np.random.default_rng(0).permutation(8)
    model = exported(tmp_path, PERMUTED.replace("ORDER", "perm"), {"a.w": weight, "perm": np.arange(8)}, {})
    done = imported(tmp_path, model, {"a.w": weight, "perm": order})
    x = normal(2, 8, seed=1)
    np.testing.assert_allclose(Session(done.output).run({"x": x})[0], (x @ weight)[:, order], rtol=1e-5, atol=1e-5)
    assert not done.match.unused


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_permutation_of_a_name_that_an_exporter_made_up_is_the_same_or_refused(
    tmp_path: Path, is_moved: bool
) -> None:
    weight, order = normal(8, 8), np.random.default_rng(0).permutation(8)
    model = exported(tmp_path, PERMUTED.replace("ORDER", "val_3"), {"a.w": weight, "val_3": order}, {})
    new = {"a.w": weight, "perm": order[::-1].copy() if is_moved else order, "position_ids": np.arange(8)}
    if is_moved:
        with pytest.raises(BadModel, match="'perm' goes nowhere, and 'val_3' of the model, of its sizes, keeps other"):
            imported(tmp_path, model, new)
        return
    assert imported(tmp_path, model, new).match.unused == ["perm", "position_ids"]


@pytest.mark.parametrize("is_shape", [True, False])
def test_a_shape_is_no_other_buffer(is_shape: bool, tmp_path: Path) -> None:
    """Of as many numbers as a buffer that goes nowhere; what is looked up by three numbers may be that buffer."""
    last = "y = Reshape(h, FEW)" if is_shape else "y = Gather <axis = 1> (h, FEW)"
    text = f'g (float[2,8] x) => (y) {{ [a] h = MatMul(x, "fc.w")  {last} }}'.replace("FEW", '"onnx::few_3"')
    own = {"fc.w": normal(8, 8), "onnx::few_3": np.array([2, 2, 4])}
    model = tiny.save(tiny.model(text, own), tmp_path)
    done = imported(tmp_path, model, {"fc.w": normal(8, 8, seed=1), "order": np.array([2, 0, 1])})
    assert any("'order' goes nowhere" in note for note in done.match.notes) == (not is_shape)


def test_what_takes_the_length_of_a_tensor_that_numpy_has_no_type_for_is_told_so() -> None:
    with pytest.raises(BadModel, match="'w' is of type F8_E8M0, which numpy does not have"):
        len(Unreadable("w", (2, 2), "F8_E8M0"))
