"""import-weights refuses what it has not understood: no constant is left old, or made of a wrong tensor."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray
from test_import_computed import FAR, NEAR, exported, imported, moved
from tiny import normal

from onnxq.checkpoints.matching.parameters import is_grid
from onnxq.errors import BadModel
from onnxq.quality import sqnr
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
#: What the model does to a parameter `m.p`, by the constant that an exporter calls so, and what that is in the model:
#: nothing tells it.
UNTOLD: dict[str, tuple[str, NDArray, NDArray]] = {
    "another operator": ("tanh", np.tanh(normal(8, seed=3) / 9), normal(8, seed=3) / 9),
    "no operator": ("onnx::Mul_28", 10 * normal(8, seed=3), normal(8, seed=3)),
    "more than one": ("exp", np.exp(2 * normal(8, seed=3) / 9), normal(8, seed=3) / 9),
    "another sum": ("add", 0.5 + normal(8, seed=3), normal(8, seed=3)),
    "zeros": ("expand", np.zeros(8), normal(8, seed=3)),
    "ones": ("add", np.ones(8), normal(8, seed=3) / 9),
    "a number": ("clamp", np.full(1, 9.0), np.full(1, 2.2)),
    "a number of no operator": ("onnx::Mul_28", np.full(1, 1.2), np.full(1, 0.2005)),
    "a number that is one": ("exp", np.full(1, 1.0), np.full(1, 0.002)),
}


@pytest.mark.parametrize("kind", [kind for kind in UNTOLD if kind != "a number of no operator"])
def test_what_nothing_tells_is_refused(tmp_path: Path, kind: str) -> None:
    name, made, parameter = UNTOLD[kind]
    text = f"""g (float[2,8] x) => (float[2,8] y) {{ [a] h = MatMul(x, "fc.w")  [b] y = Mul(h, "{name}") }}"""
    own = {"fc.w": normal(8, 8), name: made.astype(np.float32)}
    model = exported(tmp_path, text, own, {"b": "m"})
    new = {"fc.w": normal(8, 8, seed=2), "m.p": parameter.astype(np.float32) * np.float32(1.03)}
    with pytest.raises(BadModel, match=rf"m\.p goes nowhere, and {name}, of such shapes, gets nothing"):
        imported(tmp_path, model, new)


def test_a_number_that_fits_one_way_is_made_so(tmp_path: Path) -> None:
    """The older exporter does not tell that it added 1."""
    name, made, parameter = UNTOLD["a number of no operator"]
    text = f"""g (float[2,8] x) => (float[2,8] y) {{ [a] h = MatMul(x, "fc.w")  [b] y = Mul(h, "{name}") }}"""
    model = exported(tmp_path, text, {"fc.w": normal(8, 8), name: made.astype(np.float32)}, {"b": "m"})
    done = imported(tmp_path, model, {"fc.w": normal(8, 8), "m.p": parameter.astype(np.float32)})
    assert done.match.notes == [f"computed again: {name} = 1 + m.p"]


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_equal_weights_of_several_modules_are_not_one(tmp_path: Path, exporter: str) -> None:
    """Layers that torch copied are equal before training; the older exporter leaves an Identity, without a name."""
    is_new = exporter == "dynamo"
    other = "val_0" if is_new else "w1"
    text = f"""g (float[3,8] x) => (float[3,8] y) {{
        {"" if is_new else "w1 = Identity(val_0)"}
        [a] p = MatMul(x, val_0)  [b] q = Add(p, "at.0.in_proj_bias")
        [c] r = MatMul(q, {other})  [d] y = Add(r, "at.1.in_proj_bias")
    }}"""
    own = {f"at.{i}.in_proj_bias": normal(8, seed=i) for i in range(2)}
    modules = dict.fromkeys("ab", "at.0") | dict.fromkeys("cd", "at.1")
    model = exported(tmp_path, text, own | {"val_0": normal(8, 8)}, modules)
    new = moved(own, FAR) | {f"at.{i}.in_proj_weight": normal(8, 8, seed=10 + i) for i in range(2)}
    if is_new:
        with pytest.raises(BadModel, match="nothing; --partial"):
            imported(tmp_path, model, new)
        return
    done = imported(tmp_path, model, new)
    x = normal(3, 8, seed=9)
    wanted = x
    for i in range(2):
        wanted = wanted @ new[f"at.{i}.in_proj_weight"].T + new[f"at.{i}.in_proj_bias"]
    assert sqnr(wanted, Session(done.output).run({"x": x})[0]) > 100


def test_one_constant_of_several_modules_is_no_parameter_of_one(tmp_path: Path) -> None:
    text = """g (float[2,8] x) => (float[2,8] y) {
        [a] h = MatMul(x, "fc.w")  [b] s = Mul(h, expand)  [c] y = Mul(s, expand)
    }"""
    own = {"fc.w": normal(8, 8), "expand": normal(8, seed=1)}
    model = exported(tmp_path, text, own, {"b": "m.0", "c": "m.1"})
    new = {"fc.w": own["fc.w"], "m.0.p": moved(own, NEAR)["expand"], "m.1.p": moved(own, -2 * NEAR)["expand"]}
    with pytest.raises(BadModel, match=r"m\.0\.p, m\.1\.p go nowhere, and expand, .* gets nothing"):
        imported(tmp_path, model, new)


def test_a_constant_that_two_modules_read_is_not_the_parameter_of_the_first(tmp_path: Path) -> None:
    """The bias of a module that an exporter has once, and splits where nobody says the module."""
    text = """g (float[3,8] x) => (float[3,8] y) {
        [a] p = Gemm <transB = 1> (x, "at.0.w", "at.0.in_proj_bias")
        [c] s = Relu(p)  [d] y = Sub(s, "at.0.in_proj_bias")
    }"""
    own = {"at.0.w": normal(8, 8), "at.0.in_proj_bias": np.zeros(8, np.float32)}
    model = exported(tmp_path, text, own, {"a": "at.0", "c": "at.1"})
    new = own | {f"at.{i}.in_proj_bias": normal(8, seed=i) for i in range(2)}
    with pytest.raises(BadModel, match=r"at\.1\.in_proj_bias goes nowhere, though the model has what stands around"):
        imported(tmp_path, model, new)


def test_old_numbers_are_not_computed_with_new_ones(tmp_path: Path) -> None:
    """The length of a weight's rows, which the weight is divided by: the older exporter has computed it."""
    text = """g (float[2,8] x) => (float[2,5] y) {
        least = Constant <value_float = 1e-12> ()
        c = Max("onnx::Clip_7", least)  w = Div("fc.weight", c)  t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t)
    }"""
    weight = normal(5, 8)
    own = {"fc.weight": weight, "onnx::Clip_7": np.linalg.norm(weight, axis=1, keepdims=True).astype(np.float32)}
    model = tiny.save(tiny.model(text, own, opset=18), tmp_path)
    with pytest.raises(BadModel, match=r"'onnx::Clip_7' gets nothing, and is computed with 'fc.weight', which does"):
        imported(tmp_path, model, {"fc.weight": normal(5, 8, seed=1)})


@pytest.mark.parametrize("is_known", [False, True])
def test_a_factor_of_waves_does_not_go_nowhere(tmp_path: Path, is_known: bool) -> None:
    """alpha · places is waves too; but a buffer, whose numbers the model was made with, may."""
    t = np.arange(20)[:, None] / 10.0 ** np.arange(4)
    waves = np.concatenate([np.sin(t), np.cos(t)], 1).astype(np.float32)
    text = """g (float[20,8] x) => (float[20,8] y) { [a] h = MatMul(x, "fc.w")  [b] y = Add(h, mul) }"""
    model = exported(tmp_path, text, {"fc.w": normal(8, 8), "mul": 2 * waves}, {"b": "pe"})
    new = {"fc.w": normal(8, 8, seed=1)}
    if is_known:
        assert imported(tmp_path, model, new | {"pe.table": waves}).match.unused == ["pe.table"]
        return
    with pytest.raises(BadModel, match=r"'pe.alpha' goes nowhere, and its module reads 'mul', which gets nothing"):
        imported(tmp_path, model, new | {"pe.alpha": np.asarray(np.float32(3))})


@pytest.mark.parametrize("places", [5, 20])
def test_waves_with_a_place_of_padding_are_computed(tmp_path: Path, places: int) -> None:
    """As places of M2M100 are; of few places all frequencies tell it."""
    t = np.arange(places)[:, None] / 2.0 ** np.arange(16)
    waves = np.concatenate([np.sin(t), np.cos(t)], 1).astype(np.float32)
    waves[1 if places > 5 else []] = 0
    text = """g (float[N,32] x) => (float[N,32] y) { [a] h = MatMul(x, "fc.w")  [b] y = Add(h, "onnx::Add_7") }"""
    model = exported(tmp_path, text, {"fc.w": normal(32, 32), "onnx::Add_7": waves}, {})
    assert not imported(tmp_path, model, {"fc.w": normal(32, 32, seed=1)}).match.bare


def test_the_inverse_of_a_number_is_computed_again(tmp_path: Path) -> None:
    """GeM pooling: a power, the mean, and the root."""
    text = """g (float[2,8] x) => (float[2,8] y) {
        [a] h = MatMul(x, "fc.w")  [r] i = Relu(h)  [b] s = Pow(i, "m.p")  [c] y = Pow(s, mul)
    }"""
    own = {"fc.w": normal(8, 8), "m.p": np.full(1, 3, np.float32), "mul": np.full(1, 1 / 3, np.float32)}
    model = exported(tmp_path, text, own, dict.fromkeys("rbc", "m"))
    done = imported(tmp_path, model, {"fc.w": normal(8, 8), "m.p": np.full(1, 2.5, np.float32)})
    assert done.match.notes == ["computed again: mul = 1 / m.p"]


def test_of_equal_ones_that_differ_now_none_is_what_a_constant_is_made_of(tmp_path: Path) -> None:
    text = """g (float[2,8] x) => (float[2,8] y) {
        [a] h = MatMul(x, "fc.w")  [b] s = Mul(h, "m.p")  [c] t = Mul(s, "m.q")  [d] y = Mul(t, sub)
    }"""
    own = {"fc.w": normal(8, 8), "m.p": normal(8, seed=1), "m.q": normal(8, seed=1)}
    model = exported(tmp_path, text, own | {"sub": 1 - own["m.p"]}, dict.fromkeys("bcd", "m"))
    with pytest.raises(BadModel, match=r"'sub' is as well made of one as of another of 1 - m\.p, 1 - m\.q"):
        imported(tmp_path, model, moved(own, NEAR))
    new = moved({"fc.w": own["fc.w"], "m.p": own["m.p"]}, NEAR)
    done = imported(tmp_path, model, new | {"m.q": new["m.p"]})
    assert done.match.notes == ["computed again: sub = 1 - m.p"]


@pytest.mark.parametrize("is_own", [False, True])
def test_what_is_behind_a_norm_of_groups_is_told_by_that(tmp_path: Path, is_own: bool) -> None:
    """torch's newer exporter has given it the shape of channels; what other operators made may be anything."""
    w, b = ("val_1", "val_2") if is_own else ("mul", "val_2")
    text = f"""g (float[1,4,6] x) => (float[1,4,6] y) {{
        [a] k = Conv(x, "c.weight")  shape = Constant <value = int64[3] {{1, 2, 12}}> ()
        back = Constant <value = int64[3] {{1, 4, 6}}> ()  one = Constant <value = float[2] {{1, 1}}> ()
        zero = Constant <value = float[2] {{0, 0}}> ()  r = Reshape(k, shape)
        i = InstanceNormalization(r, one, zero)  s = Reshape(i, back)  [m] t = Mul(s, {w})  [n] y = Add(t, {b})
    }}"""
    own = {"c.weight": normal(4, 4, 1), w: normal(4, 1, seed=1), b: normal(4, 1, seed=2)}
    model = exported(tmp_path, text, own, {"a": "c", "m": "g", "n": "g"})
    new = {"c.weight": normal(4, 4, 1, seed=3), "g.weight": normal(4, seed=4), "g.bias": normal(4, seed=5)}
    if not is_own:
        with pytest.raises(BadModel, match=r"g.weight goes nowhere|'g.weight' goes nowhere"):
            imported(tmp_path, model, new)
        return
    x = normal(1, 4, 6, seed=9)
    k = np.einsum("oi,bit->bot", new["c.weight"][..., 0], x).reshape(1, 2, 12)
    k = ((k - k.mean(-1, keepdims=True)) / np.sqrt(k.var(-1, keepdims=True) + 1e-5)).reshape(1, 4, 6)
    wanted = k * new["g.weight"][:, None] + new["g.bias"][:, None]
    assert sqnr(wanted, Session(imported(tmp_path, model, new).output).run({"x": x})[0]) > 80


def test_old_numbers_do_not_become_part_of_a_bias(tmp_path: Path) -> None:
    """What is added behind a convolution, as a step of diffusion that the model has fixed, becomes its bias."""
    text = """g (float[1,4,6] x) => (float[1,8,6] y) {
        [a] k = Conv(x, "c.weight", "c.bias")  [b] y = Add(k, unsqueeze_2)
    }"""
    own = {"c.weight": normal(8, 4, 1), "c.bias": normal(8, seed=1)}
    model = exported(tmp_path, text, own | {"unsqueeze_2": normal(8, 1, seed=2)}, {"a": "c"})
    with pytest.raises(BadModel, match="unsqueeze_2 of the model gets nothing"):
        imported(tmp_path, model, moved(own, FAR) | {"time.weight": normal(8, 3)})


def on_grid(*sizes: int, width: int = 24) -> NDArray:
    """Sines and cosines of the places of a grid, those of each axis in columns of their own, as DiT has them."""
    w = 1 / 100 ** (np.arange(width // 2) / (width // 2))
    waves = [np.concatenate([np.sin(t), np.cos(t)], -1) for t in (np.arange(n)[:, None] * w for n in sizes)]
    places = np.indices(sizes).reshape(len(sizes), -1)
    return np.concatenate([wave[place] for wave, place in zip(waves, places, strict=True)], -1).astype(np.float32)


@pytest.mark.parametrize("tokens", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(6, 6), (5, 16), (5, 5, 6), (4, 4, 4)], ids=str)
@pytest.mark.parametrize("name", ["pos_embed", "_unsafe_view", "onnx::Add_7"])
def test_places_of_a_grid_are_kept(name: str, sizes: tuple[int, ...], tokens: int, tmp_path: Path) -> None:
    """No checkpoint of DiT, PixArt and Stable Diffusion 3 has them, nor of MAE behind its tokens of no place; what is
    no such grid is asked for."""
    places = np.pad(on_grid(*sizes), [(tokens, 0), (0, 0)])
    n = places.shape[1]
    text = f'g (float[{len(places)},{n}] x) => (y) {{ [a] p = MatMul(x, "fc.w")  [b] y = Add(p, "{name}") }}'
    new = {"fc.w": normal(n, n, seed=9)}
    model = exported(tmp_path, text, {"fc.w": normal(n, n), name: places}, {})
    done = imported(tmp_path, model, new)
    assert done.match.notes == [f"kept, as sines and cosines of places: {name}"]
    x = normal(len(places), n, seed=5)
    assert sqnr(x @ new["fc.w"] + places, Session(done.output).run({"x": x})[0]) > 100
    first, *_, last = np.indices(sizes).reshape(len(sizes), -1)
    axial = np.concatenate([normal(16, 24, seed=2)[first], normal(16, n - 24, seed=3)[last]], 1)
    axial = np.pad(axial, [(tokens, 0), (0, 0)])
    for learned in (places + normal(*places.shape, seed=1), axial):
        model = exported(tmp_path, text, {"fc.w": normal(n, n), name: learned}, {})
        with pytest.raises(BadModel, match=f"{name} of the model gets nothing"):
            imported(tmp_path, model, new)


@pytest.mark.parametrize("repeats", [np.repeat, lambda x, count, axis: np.tile(x, (count, 1))])
def test_rows_that_are_repeated_are_soon_told_from_a_grid(repeats: Any) -> None:
    for few in (1, 10):
        rows = repeats(normal(few, 256), 110_000 // few, 0)
        begin = time.process_time()
        assert not is_grid(rows)
        assert time.process_time() - begin < 1


@pytest.mark.parametrize("case", ["chosen", "what comes later", "of the newer exporter"])
def test_truth_values_of_a_parameter_are_noted(case: str, tmp_path: Path) -> None:
    """torch.where(gate > 0, ...), whose numbers the older exporter has folded, and masks that no parameter makes."""
    name = "val_3" if case == "of the newer exporter" else "onnx::Where_7"
    text = f"""g (float[8,8] x) => (float[8,8] y) {{
        ["/fc/MatMul"] h = MatMul(x, "fc.w")  ["/Where"] y = Where("{name}", h, x)
    }}"""
    gate = normal(8, 8, seed=3)
    own = {"fc.w": normal(8, 8), name: np.tri(8, dtype=bool) if case == "what comes later" else gate > 0}
    new = {"fc.w": normal(8, 8, seed=9), "gate": -gate}
    done = imported(tmp_path, tiny.save(tiny.model(text, own), tmp_path), new)
    noted = [f"'{name}' of the model keeps its truth values, and may be computed from 'gate'"]
    assert [note for note in done.match.notes if "truth" in note] == noted * (case == "chosen")
