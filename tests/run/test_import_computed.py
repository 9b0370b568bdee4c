"""import-weights into models whose exporter computed constants from parameters: these are computed again."""

from __future__ import annotations

import time
from collections.abc import Callable
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
from onnxq.quality import sqnr
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
Arrays = dict[str, NDArray]
#: Another checkpoint's numbers, as far from the model's as 40 dB, and others altogether.
NEAR, FAR = 0.01, 3.0


def moved(own: Arrays, by: float) -> Arrays:
    rng = np.random.default_rng(7)
    return {name: (x + by * rng.standard_normal(x.shape)).astype(np.float32) for name, x in own.items()}


def save(path: Path, tensors: Arrays) -> Path:
    write_arrays(path, ((name, lambda x=x: x) for name, x in tensors.items()), replace=True)
    return path


def exported(folder: Path, text: str, constants: Arrays, modules: dict[str, str]) -> Path:
    """As torch.onnx.export(dynamo=True) writes it: metadata tell the module of each node."""
    model = tiny.model(text, constants, opset=18)
    for node in model.graph.node:
        scopes = str(["", *([modules[node.name]] if modules.get(node.name) else []), "op"])
        node.metadata_props.append(onnx.StringStringEntryProto(key="pkg.torch.onnx.name_scopes", value=scopes))
    return tiny.save(model, folder)


def imported(folder: Path, model: Path, tensors: Arrays, way: str = "auto") -> Imported:
    options = ImportOptions(accuracy_level=0, match=way)
    (folder / "q.onnx").unlink(missing_ok=True)
    return import_weights(model, save(folder / "w.safetensors", tensors), folder / "q.onnx", options=options)


CELL = """g (float[2,8] x) => (float[2,16] y) {
    [a] g1 = Gemm <transB = 1> (x, "c.weight_ih", "c.bias_ih")  [b] g2 = Add(g1, linear)  [t] h = Tanh(g2)
    [d] g3 = Gemm <transB = 1> (x, "c.weight_ih", "c.bias_ih")
    [e] g4 = Gemm <transB = 1> (h, "c.weight_hh", "c.bias_hh")  [f] y = Add(g3, g4)
}"""


@pytest.mark.parametrize("by", [NEAR, FAR])
def test_a_state_of_zeros_times_a_weight_is_its_bias(tmp_path: Path, by: float) -> None:
    """A cell of two steps, unrolled: of the first product of the state its exporter has made a constant."""

    def parameters() -> Arrays:
        return {"c.weight_ih": normal(16, 8), "c.weight_hh": normal(16, 16, seed=1)} | {
            f"c.bias_{part}": normal(16, seed=2 + i) for i, part in enumerate(("ih", "hh"))
        }

    own, new = parameters(), moved(parameters(), by)
    made = own | {"linear": np.broadcast_to(own["c.bias_hh"], (2, 16)).copy()}
    done = imported(tmp_path, exported(tmp_path, CELL, made, dict.fromkeys("abtdef", "c")), new)
    assert done.match.notes == ["computed again: linear = c.bias_hh"]
    x = normal(2, 8, seed=9)
    first = np.tanh(x @ new["c.weight_ih"].T + new["c.bias_ih"] + new["c.bias_hh"])
    wanted = x @ new["c.weight_ih"].T + new["c.bias_ih"] + first @ new["c.weight_hh"].T + new["c.bias_hh"]
    assert sqnr(wanted, Session(done.output).run({"x": x})[0]) > 100


def test_what_cannot_be_computed_again_is_refused(tmp_path: Path) -> None:
    """A state that is not zero, times the weight: the model does not say what it was."""
    own = {"c.weight_ih": normal(16, 8), "c.weight_hh": normal(16, 16, seed=1)}
    own |= {f"c.bias_{part}": normal(16, seed=2 + i) for i, part in enumerate(("ih", "hh"))}
    made = own | {"linear_3": (normal(2, 16, seed=5) @ own["c.weight_hh"].T + own["c.bias_hh"]).astype(np.float32)}
    model = exported(tmp_path, CELL.replace("linear", "linear_3"), made, dict.fromkeys("abtdef", "c"))
    with pytest.raises(BadModel, match="linear_3 of the model gets nothing"):
        imported(tmp_path, model, moved(own, FAR))


#: What each exporter makes of a module's parameter `m.p`, in `[N, 8]`: constant, shape, how.
MADE: dict[str, tuple[str, tuple[int, ...], Callable[[NDArray], NDArray]]] = {
    "norm": ("add_2", (8,), lambda p: 1 + p),
    "decay": ("neg", (8,), lambda p: -np.exp(p)),
    "token": ("expand", (8,), lambda p: np.broadcast_to(p, (1, 5, 8))),
    "places": ("embedding_1", (40, 8), lambda p: p[None, 2:7]),
    "turned": ("permute", (8, 5), lambda p: p.T),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_parameter_that_the_model_lacks_is_found_in_its_module(tmp_path: Path, kind: str) -> None:
    name, shape, make = MADE[kind]
    text = f"""g (float[1,5,8] x) => (float[1,5,8] y) {{
        [a] h = MatMul(x, "fc.w")  [b] s = Mul(h, {name})  [c] y = Add(s, "m.other")
    }}"""
    parameter = normal(*shape, seed=3) / 2
    own = {"fc.w": normal(8, 8), "m.other": normal(8, seed=4)}
    model = exported(tmp_path, text, own | {name: np.ascontiguousarray(make(parameter))}, {"b": "m", "c": "m"})
    new = moved(own | {"m.p": parameter}, NEAR)
    done = imported(tmp_path, model, new)
    assert not done.match.unused and not done.match.bare
    x = normal(1, 5, 8, seed=9)
    wanted = (x @ new["fc.w"]) * make(new["m.p"]) + new["m.other"]
    assert sqnr(wanted, Session(done.output).run({"x": x})[0]) > 100
    new = moved(own | {"m.p": parameter}, FAR)
    with pytest.raises(BadModel, match=f"{name}.*get"):
        imported(tmp_path, model, new)


NAMES = {"dynamo": ("exp", "model.logit_bias"), "legacy": ("onnx::Exp_1", "onnx::Add_2")}


@pytest.mark.parametrize("exporter", NAMES)
def test_single_numbers(tmp_path: Path, exporter: str) -> None:
    """CLIP's and SigLIP's: the newer exporter has computed exp(logit_scale), the older one forgot both names. Others
    stand in the program."""
    scale, bias = NAMES[exporter]
    is_made = exporter == "dynamo"
    text = f"""g (float[M,8] x) => (float[M,4] y) {{
        [fc] h = Gemm <transB = 1> (x, "fc.weight")  ["/model/Mul"] t = Mul(h, val_3)
        {"" if is_made else f'["/model/Exp"] e = Exp("{scale}")'}
        ["/model/Mul_1"] s = Mul(t, {scale if is_made else "e"})  ["/model/Add"] y = Add(s, "{bias}")
    }}"""
    constants = {scale: np.float32(np.exp(2.7) if is_made else 2.7), bias: np.full(1, -10, np.float32)}
    constants = {name: np.asarray(x) for name, x in constants.items()} | {"val_3": np.asarray(np.float32(0.5))}
    nodes = ["/model/Mul", "/model/Exp", "/model/Mul_1", "/model/Add"]
    modules = dict.fromkeys(nodes, "model") if is_made else {}
    text_of = {"fc.weight": normal(4, 8)}
    if is_made:
        model = exported(tmp_path, text, constants | text_of, modules)
    else:
        model = tiny.save(tiny.model(text, constants | text_of, opset=18), tmp_path)
    new: Arrays = {"fc.weight": normal(4, 8, seed=3), "model.logit_scale": np.asarray(np.float32(2.705))}
    new["model.logit_bias"] = np.full(1, -10.05, np.float32)
    done = imported(tmp_path, model, new)
    x = normal(3, 8, seed=9)
    wanted = x @ new["fc.weight"].T * 0.5 * np.exp(2.705) - 10.05
    assert sqnr(wanted, Session(done.output).run({"x": x})[0]) > 100
    del new["model.logit_bias"]
    new["model.tau"] = np.asarray(np.float32(3))
    with pytest.raises(BadModel, match=r"nothing( \(torch.s older exporter .*\))?; --partial"):
        imported(tmp_path, model, new)


@pytest.mark.parametrize("by", [NEAR, FAR])
def test_parameters_with_a_name_of_their_own_are_told_by_biases_and_operators(tmp_path: Path, by: float) -> None:
    """in_proj_weight of attention, weight_hh_l0 of an RNN that was unrolled, and slopes of channels."""
    text = """g (float[3,8] x) => (float[3,8] y) {
        [a] q = MatMul(x, val_0)  [b] p = Add(q, "at.in_proj_bias")  [c] s = PRelu(p, val_1)
        [d] h = MatMul(s, val_2)  [e] t = Add(h, "r.bias_hh_l0")
        [f] u = MatMul(t, val_3)  [g] v = Add(u, "r.bias_ih_l1")  [h] y = PRelu(v, val_4)
    }"""
    own = {"at.in_proj_weight": normal(24, 8), "at.in_proj_bias": normal(24, seed=1), "act.weight": normal(24, seed=2)}
    own |= {"r.weight_hh_l0": normal(8, 24, seed=3), "r.bias_hh_l0": normal(8, seed=4)}
    own |= {"r.weight_ih_l1": normal(8, 8, seed=5), "r.bias_ih_l1": normal(8, seed=6)}
    own |= {"last.weight": np.full(1, 0.25, np.float32)}
    sources = {"val_0": "at.in_proj_weight", "val_2": "r.weight_hh_l0", "val_3": "r.weight_ih_l1"}
    constants = {name: x for name, x in own.items() if "bias" in name}
    constants |= {name: np.ascontiguousarray(own[source].T) for name, source in sources.items()}
    constants |= {"val_1": own["act.weight"][None], "val_4": own["last.weight"][None]}
    modules = dict.fromkeys("ab", "at") | dict.fromkeys("defg", "r") | {"c": "act", "h": "last"}
    new = moved(own, by)
    done = imported(tmp_path, exported(tmp_path, text, constants, modules), new)
    assert not done.match.unused and not done.match.bare
    x = normal(3, 8, seed=9)
    p = x @ new["at.in_proj_weight"].T + new["at.in_proj_bias"]
    s = np.where(p < 0, p * new["act.weight"], p)
    t = s @ new["r.weight_hh_l0"].T + new["r.bias_hh_l0"]
    v = t @ new["r.weight_ih_l1"].T + new["r.bias_ih_l1"]
    assert sqnr(np.where(v < 0, v * new["last.weight"], v), Session(done.output).run({"x": x})[0]) > 100


@pytest.mark.parametrize("wrapper", ["", "model_."])
def test_the_bias_of_a_head_for_masked_words_is_that_around_it(tmp_path: Path, wrapper: str) -> None:
    head = f"{wrapper}cls.predictions.decoder"
    text = f"""g (float[M,8] x) => (float[M,12] y) {{
        h = Gemm <transB = 1> (x, "{wrapper}cls.dense.weight", "{wrapper}cls.dense.bias")
        y = Gemm <transB = 1> (h, "{head}.weight", "{head}.bias")
    }}"""
    own = {"cls.dense.weight": normal(8, 8), "cls.dense.bias": normal(8, seed=1)}
    own |= {"cls.predictions.decoder.weight": normal(12, 8, seed=2), "cls.predictions.decoder.bias": normal(12, seed=3)}
    model = tiny.save(tiny.model(text, {f"{wrapper}{name}": x for name, x in own.items()}), tmp_path)
    new = {name.replace("decoder.bias", "bias"): x for name, x in moved(own, FAR).items()}
    done = imported(tmp_path, model, new)
    x = normal(3, 8, seed=9)
    h = x @ new["cls.dense.weight"].T + new["cls.dense.bias"]
    wanted = h @ new["cls.predictions.decoder.weight"].T + new["cls.predictions.bias"]
    assert sqnr(wanted, Session(done.output).run({"x": x})[0]) > 100


def test_equal_biases_of_several_modules_are_parted(tmp_path: Path) -> None:
    """Before training they are zeros, which an exporter has once."""
    text = """g (float[3,8] x) => (float[3,8] y) {
        [a] p = MatMul(x, val_0)  [b] q = Add(p, "at.0.in_proj_bias")
        [c] r = MatMul(q, val_1)  [d] y = Add(r, "at.0.in_proj_bias")
    }"""
    own = {f"at.{i}.in_proj_weight": normal(8, 8, seed=i) for i in range(2)}
    constants = {f"val_{i}": np.ascontiguousarray(own[f"at.{i}.in_proj_weight"].T) for i in range(2)}
    model = exported(
        tmp_path,
        text,
        constants | {"at.0.in_proj_bias": np.zeros(8, np.float32)},
        dict.fromkeys("ab", "at.0") | dict.fromkeys("cd", "at.1"),
    )
    new = moved(own, FAR) | {f"at.{i}.in_proj_bias": normal(8, seed=10 + i) for i in range(2)}
    done = imported(tmp_path, model, new)
    x = normal(3, 8, seed=9)
    for i in range(2):
        x = x @ new[f"at.{i}.in_proj_weight"].T + new[f"at.{i}.in_proj_bias"]
    assert sqnr(x, Session(done.output).run({"x": normal(3, 8, seed=9)})[0]) > 100


def test_constants_in_nodes_are_judged_too(tmp_path: Path) -> None:
    """As the older exporter writes what it computed: places times a weight that the checkpoint still has."""
    text = """g (float[5,8] x) => (float[5,8] y) {
        ["/fc/MatMul"] h = MatMul(x, "onnx::1")  ["/Constant"] c = Constant <value = float[8] {NUMBERS}> ()
        ["/Add"] y = Add(h, c)
    }"""
    numbers = ", ".join(str(x) for x in normal(8, seed=5).tolist())
    model = tiny.save(tiny.model(text.replace("NUMBERS", numbers), {"onnx::1": normal(8, 8)}), tmp_path)
    with pytest.raises(BadModel, match="c of the model gets nothing"):
        imported(tmp_path, model, {"fc.weight": normal(8, 8, seed=1), "pos.weight": normal(8, 3, seed=2)})


def test_of_two_that_are_alike_none_is_taken(tmp_path: Path) -> None:
    """Tokens of one module that are equal in the model: nothing tells which is which."""
    text = """g (float[2,8] x) => (float[2,8] y) {
        [a] h = MatMul(x, "fc.w")  [b] s = Add(h, expand)  [c] y = Mul(s, o)
    }"""
    own = {"fc.w": normal(8, 8), "expand": normal(2, 8, seed=3)[[0, 0]], "o": normal(8, seed=1)}
    model = exported(tmp_path, text, own, {"b": "m", "c": "m"})
    new = {"fc.w": normal(8, 8, seed=2), "o": own["o"], "m.token": moved(own, NEAR)["expand"][0]}
    done = imported(tmp_path, model, new)
    x = normal(2, 8, seed=9)
    assert sqnr((x @ new["fc.w"] + new["m.token"]) * new["o"], Session(done.output).run({"x": x})[0]) > 100
    with pytest.raises(BadModel, match=r"expand of the model gets nothing"):
        imported(tmp_path, model, new | {"m.other": moved(own, -NEAR)["expand"][0]})


def test_parts_of_a_weight_are_not_taken_for_it(tmp_path: Path) -> None:
    """Of weight_norm, v is like what g · v / |v| was, but not that."""
    text = "g (float[1,4,9] x) => (float[1,8,7] y) { [a] y = Conv(x, val_1) }"
    v = normal(8, 4, 3)
    model = exported(tmp_path, text, {"val_1": v}, {"a": "c"})
    new = {"c.weight_v": v + normal(8, 4, 3, seed=1) / 100, "c.weight_g": normal(8, 1, 1, seed=2)}
    with pytest.raises(BadModel, match=r"c\.weight_v goes nowhere, and val_1|val_1"):
        imported(tmp_path, model, new)


def test_constants_that_hold_nothing_are_none(tmp_path: Path) -> None:
    """As the regions of a Resize are, and whatever else a model adds to no numbers."""
    text = """g (float[2,8] x, float[0,8] z) => (float[2,8] y, float[0,8] u) {
        [a] y = MatMul(x, "fc.w")  [b] u = Add(z, nothing)
    }"""
    own = {"fc.w": normal(8, 8), "nothing": np.zeros((0, 8), np.float32)}
    model = exported(tmp_path, text, own, {"b": "m"})
    new = {"fc.w": normal(8, 8, seed=2), "m.bias": normal(8, seed=3), "m.more": normal(4, 8, seed=3)}
    done = imported(tmp_path, model, new)
    assert done.match.unused == ["m.bias", "m.more"]


def test_each_of_many_is_told_by_its_numbers_in_time(tmp_path: Path) -> None:
    """Weights that are read as they are, which names tell, and with 1 added, which numbers tell."""
    count, lines, own, new = 400, list[str](), {}, {}
    for i in range(count):
        lines.append(f'[n{i}] h{i} = Mul(x, "m{i}.weight")  [p{i}] g{i} = Mul(h{i}, add_{i})')
        own[f"m{i}.weight"], new[f"m{i}.weight"] = normal(8, seed=i), normal(8, seed=count + i)
        own[f"add_{i}"] = 1 + own[f"m{i}.weight"]
    sums = ", ".join(f"g{i}" for i in range(count))
    text = f"g (float[2,8] x) => (float[2,8] y) {{ {' '.join(lines)} y = Sum({sums}) }}"
    model = exported(tmp_path, text, own, {f"p{i}": f"m{i}" for i in range(count)})
    start = time.process_time()
    done = imported(tmp_path, model, new)
    assert time.process_time() - start < 30
    made = {x.name: onnx.numpy_helper.to_array(x) for x in onnx.load(done.output).graph.initializer}
    for i in range(count):
        np.testing.assert_allclose(made[f"add_{i}"], 1 + new[f"m{i}.weight"], rtol=1e-6)
