"""Two models layer by layer: which values are paired, what error they have, and which layer is to blame."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from click.testing import CliRunner
from layered import CHAIN, IMAGE, WEIGHTS, compared, rows
from tiny import model, normal, save

from onnxq.checking.layers.difference import axes_between, difference, turned, turned_back
from onnxq.checking.layers.floor import parse_floors
from onnxq.checking.layers.result import role_of
from onnxq.cli import main
from onnxq.errors import BadModel
from onnxq.quality import MAX_DB, UNEQUAL_DB
from onnxq.samples.sampling import Sampling


@pytest.fixture
def data(tmp_path: Path) -> Sampling:
    np.savez(tmp_path / "data.npz", x=normal(3, 4, 8, seed=3) * 4)
    return Sampling(str(tmp_path / "data.npz"))


def test_a_model_is_the_same_as_itself(tmp_path: Path, data: Sampling) -> None:
    found = compared(tmp_path, model(CHAIN, WEIGHTS), model(CHAIN, WEIGHTS), data)
    assert [(layer.a, layer.role, layer.sqnr) for layer in found.layers] == [(n, "same", 120.0) for n in "abcy"]
    assert found.first_apart is None and not found.adding and not found.unpaired_a and found.proves


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("large", [1e-170, 1.0, 1e150, 1e200])
def test_numbers_whose_squares_are_infinite_or_none_are_compared(large: float, tmp_path: Path) -> None:
    """Scaled channels too; what a layer is given is not rounded to float32, which does not hold it."""
    text = "g (double[100, 4] x) => (double[100, 4] y) { h = Mul(x, s)  r = Relu(h)  y = Mul(r, t) }"
    np.savez(tmp_path / "data.npz", x=normal(8, 100, 4).astype(np.float64) * large)
    data, ones = Sampling(str(tmp_path / "data.npz")), np.ones(4)
    plain, scale = model(text, {"s": ones, "t": ones}), np.array([1.0, 8, 1, 2])
    found = compared(tmp_path, plain, model(text, {"s": scale, "t": 1 / scale}), data)
    assert [(x.sqnr, x.local_sqnr, x.is_scaled) for x in found.layers] == [(120, 120, n < 2) for n in range(3)]
    found = compared(tmp_path, plain, model(text, {"s": ones, "t": -ones}), data)
    last = found.layers[-1]
    assert last.sqnr == last.local_sqnr == pytest.approx(-20 * np.log10(2)) and last.cosine == pytest.approx(-1)
    assert large < last.max_error < 20 * large


@pytest.mark.filterwarnings("error")
def test_an_error_that_float64_does_not_hold_is_infinite() -> None:
    found = difference(np.array([1.7e308, 1.0]), np.array([-1.7e308, 1.0]))
    assert found.max_error == np.inf and found.sqnr == pytest.approx(-20 * np.log10(2))


def test_the_layer_with_the_fault_is_found_and_the_others_pass_it_on(tmp_path: Path, data: Sampling) -> None:
    wrong = WEIGHTS["w1"].copy()
    wrong[:, 3] *= 0.5
    found = compared(tmp_path, model(CHAIN, WEIGHTS), model(CHAIN, WEIGHTS | {"w1": wrong}), data)
    assert [layer.role for layer in found.layers] == ["adds", "passes", "passes", "passes"]
    assert found.first_apart is not None and found.first_apart.a == "a"
    assert [layer.a for layer in found.adding] == ["a"]
    # Against numpy in float64: half of one column is missing.
    x = np.load(tmp_path / "data.npz")["x"].astype(np.float64)
    a, b = x @ WEIGHTS["w1"].astype(np.float64), x @ wrong.astype(np.float64)
    first = found.layers[0]
    assert first.sqnr == pytest.approx(10 * np.log10((a * a).sum() / ((a - b) ** 2).sum()), abs=1e-3)
    assert first.local_sqnr == pytest.approx(first.sqnr, abs=1e-6)
    assert first.max_error == pytest.approx(np.abs(a - b).max(), rel=1e-5)
    assert first.cosine == pytest.approx((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()), rel=1e-6)
    assert first.elements == a.size
    assert all(layer.local_sqnr == 120.0 for layer in found.layers[1:])


def test_what_rounds_a_value_is_the_error_of_the_layer_that_makes_it(tmp_path: Path, data: Sampling) -> None:
    rounded = """g (float[4, 8] x) => (float[4, 8] y) {
        a = MatMul (x, w1)
        b = Relu (a)
        q = QuantizeLinear (b, s, z)
        d = DequantizeLinear (q, s, z)
        c = MatMul (d, w2)
        y = Tanh (c)
    }"""
    more = {"s": np.float32(0.05), "z": np.uint8(0)}
    found = rows(compared(tmp_path, model(CHAIN, WEIGHTS), model(rounded, WEIGHTS | more), data))
    assert [found[name].role for name in "abcy"] == ["same", "adds", "passes", "passes"]
    assert found["c"].local_sqnr == 120.0 > found["c"].sqnr


def test_a_relu_that_codes_do_the_work_of_is_found_behind_them(tmp_path: Path, data: Sampling) -> None:
    cut = """g (float[4, 8] x) => (float[4, 8] y) {
        a = MatMul (x, w1)
        q = QuantizeLinear (a, s, z)
        d = DequantizeLinear (q, s, z)
        c = MatMul (d, w2)
        y = Tanh (c)
    }"""
    more = {"s": np.float32(0.05), "z": np.uint8(0)}
    found = rows(compared(tmp_path, model(CHAIN, WEIGHTS), model(cut, WEIGHTS | more), data))
    assert "a" not in found and found["b"].b == "a"
    assert found["b"].sqnr > 25


def renamed(proto: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    kept = {value.name for value in (*made.graph.input, *made.graph.output)}
    for i, node in enumerate(made.graph.node):
        node.name = f"n{i}"
        for names in (node.input, node.output):
            for j, name in enumerate(names):
                names[j] = name if name in kept or not name else f"v_{name}_{len(name)}"
    for tensor in made.graph.initializer:
        tensor.name = f"v_{tensor.name}_{len(tensor.name)}"
    return made


def test_values_of_other_names_are_found_by_what_computes_them(tmp_path: Path, data: Sampling) -> None:
    found = compared(tmp_path, model(CHAIN, WEIGHTS), renamed(model(CHAIN, WEIGHTS)), data)
    assert [(layer.a, layer.pairing) for layer in found.layers] == [
        ("a", "position"),
        ("b", "position"),
        ("c", "position"),
        ("y", "name"),
    ]
    assert all(layer.sqnr == 120.0 for layer in found.layers)


def test_a_product_with_its_bias_is_a_gemm(tmp_path: Path, data: Sampling) -> None:
    apart = "g (float[4, 8] x) => (float[4, 8] y) {\n a = MatMul (x, w1)\n b = Add (a, c)\n y = Relu (b)\n}"
    joined = "g (float[4, 8] x) => (float[4, 8] y) {\n other = Gemm (x, w1, c)\n y = Relu (other)\n}"
    constants = {"w1": WEIGHTS["w1"], "c": normal(8, seed=4)}
    for first, second, name in ((apart, joined, "b"), (joined, apart, "other")):
        found = rows(compared(tmp_path, model(first, constants), model(second, constants), data))
        assert found[name].pairing == "position" and found[name].sqnr > 100


def test_channels_last_are_turned(tmp_path: Path) -> None:
    last = """g (float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {
        t = Transpose <perm = [0, 2, 3, 1]> (x)
        u = Transpose <perm = [0, 3, 1, 2]> (t)
        p = Conv <pads = [1, 1, 1, 1]> (u, w)
        q = Transpose <perm = [0, 2, 3, 1]> (p)
        r = Relu (q)
        s = Transpose <perm = [0, 3, 1, 2]> (r)
        y = Conv <pads = [1, 1, 1, 1]> (s, w)
    }"""
    constants = {"w": normal(8, 8, 3, 3, seed=5)}
    found = rows(compared(tmp_path, model(IMAGE, constants), model(last, constants)))
    assert found["b"].axes == (0, 3, 1, 2) and found["b"].b == "r"
    assert all(layer.sqnr > 100 and layer.local_sqnr is not None and layer.local_sqnr > 100 for layer in found.values())


def test_what_was_fused_into_convolutions_is_found_behind_them(tmp_path: Path) -> None:
    apart = """g (float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        n = BatchNormalization (a, scale, shift, mean, var)
        b = Relu (n)
        c = Conv <pads = [1, 1, 1, 1]> (b, w)
        s = Add (c, b)
        r = Relu (s)
        y = Tanh (r)
    }"""
    joined = """g (float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {
        one = com.microsoft.FusedConv <pads = [1, 1, 1, 1], activation = "Relu"> (x, v, shift)
        two = com.microsoft.FusedConv <pads = [1, 1, 1, 1], activation = "Relu"> (one, w, none, one)
        y = Tanh (two)
    }"""
    w, scale, none = normal(8, 8, 3, 3, seed=5), np.linspace(0.5, 2, 8).astype(np.float32), np.zeros(8, np.float32)
    same = {"scale": scale, "shift": scale / 4, "mean": none, "var": np.ones(8, np.float32) - np.float32(1e-5)}
    first = model(apart, {"w": w} | same)
    second = model(joined, {"w": w, "v": w * scale[:, None, None, None], "shift": same["shift"], "none": none})
    found = rows(compared(tmp_path, first, second))
    assert {name: layer.b for name, layer in found.items()} == {"b": "one", "r": "two", "y": "y"}
    assert all(layer.sqnr > 100 for layer in found.values())


def test_square_images_are_turned_by_how_they_look() -> None:
    x = normal(1, 6, 6, 6, seed=6)
    y = x.transpose(0, 2, 3, 1)
    axes = axes_between(x, y)
    assert axes is not None and np.array_equal(turned(y, axes), x) and np.array_equal(turned_back(x, axes), y)
    assert axes_between(x, x) == () and axes_between(x, normal(1, 6, 6, 5)) is None
    assert axes_between(x, x.reshape(6, 6, 6)) == ()


def test_branches_of_an_if_are_compared(tmp_path: Path) -> None:
    text = """g (float[2, 8] x, bool c) => (float[2, 8] y) {
        h = MatMul (x, w1)
        y = If (c) <
            then_branch = t () => (float[2, 8] p) { k = MatMul (h, w2)  p = Relu (k) },
            else_branch = e () => (float[2, 8] n) { n = Tanh (h) }
        >
    }"""
    wrong = WEIGHTS | {"w2": WEIGHTS["w2"] * np.float32(1.1)}
    np.savez(tmp_path / "data.npz", x=normal(2, 2, 8, seed=3), c=np.array([True, False]))
    found = rows(compared(tmp_path, model(text, WEIGHTS), model(text, wrong), Sampling(str(tmp_path / "data.npz"))))
    assert found["k"].role == "adds" and found["k"].sqnr == pytest.approx(20, abs=0.01)
    assert found["n"].role == "same" and found["h"].role == "same"
    assert found["k"].elements == found["n"].elements == 16  # each in one of the two samples


def test_sequences_are_left_out_also_where_nothing_says_that_they_are(tmp_path: Path) -> None:
    text = """g (float[n, 32] x) => (float[n, 16] y)
    {
        s = SequenceConstruct (x, x)
        i = Identity (s)
        f = If (yes) <
            then_branch = t () => (seq(float[]) u) { u = Identity (i) },
            else_branch = e () => (seq(float[]) v) { v = SequenceInsert (i, x) }
        >
        c = ConcatFromSequence <axis = 1> (f)
        y = MatMul (c, w)
    }"""
    made = model(text, {"w": normal(64, 16), "yes": np.array(True)})
    assert set(rows(compared(tmp_path, made, made))) == {"c", "y"}


def test_a_first_output_that_is_left_out(tmp_path: Path) -> None:
    text = """g (float[3, 1, 8] x) => (float[1, 1, 4] y) {
        left_out, h = GRU <hidden_size = 4> (x, w, r)
        y = Tanh (h)
    }"""
    constants = {"w": normal(1, 12, 8), "r": normal(1, 12, 4, seed=1)}
    proto = model(text, constants)
    proto.graph.node[0].output[0] = ""
    found = rows(compared(tmp_path, proto, proto))
    assert [(name, layer.role) for name, layer in found.items()] == [("h", "same"), ("y", "same")]


def test_in_little_memory_the_result_is_the_same(tmp_path: Path, data: Sampling) -> None:
    a, b = model(CHAIN, WEIGHTS), model(CHAIN, WEIGHTS | {"w1": WEIGHTS["w1"] * np.float32(0.9)})
    whole, apart = compared(tmp_path, a, b, data), compared(tmp_path, a, b, data, memory=1)
    for one, other in zip(whole.layers, apart.layers, strict=True):
        assert (one.a, one.b, one.role) == (other.a, other.b, other.role)
        assert one.sqnr == pytest.approx(other.sqnr, abs=1e-6)


def test_models_of_other_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"cannot be compared: .* takes x and .* takes z"):
        compared(tmp_path, model(CHAIN, WEIGHTS), model(CHAIN.replace("x", "z"), WEIGHTS))


def test_a_floor_ends_with_exit_status_1(tmp_path: Path, data: Sampling) -> None:
    a = save(model(CHAIN, WEIGHTS), tmp_path, "a.onnx")
    b = save(model(CHAIN, WEIGHTS | {"w2": WEIGHTS["w2"] * np.float32(0.9)}), tmp_path, "b.onnx")

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["check", str(a), str(b), "--data", str(data.source), "--by-layer", *words])
        return done.exit_code, done.output

    assert run("--fail-below", "sqnr=15,cosine=0.9")[0] == 0
    code, text = run("--fail-below", "sqnr=30")
    assert code == 1 and "'c' (MatMul)" in text and "sqnr=20, less than 30" in text
    code, text = run("--json")
    table = json.loads(text)
    assert code == 0 and table["onnxq_layers"] == 1 and table["first_apart"] == "c" and table["adding"] == ["c"]
    assert [layer["a"] for layer in table["layers"]] == list("abcy")
    assert run("--fail-below", "psnr=3")[0] == 1 and run("--metric", "top1")[0] == 1


def test_of_many_layers_those_that_matter_are_shown(tmp_path: Path, data: Sampling) -> None:
    body = "".join(f"v{i} = MatMul (v{i - 1}, w{i}) " for i in range(1, 60))
    text = f"g (float[4, 8] x) => (float[4, 8] y) {{ v0 = Relu (x) {body} y = Tanh (v59) }}"
    weights = {f"w{i}": np.linalg.qr(normal(8, 8, seed=i))[0] for i in range(1, 60)}
    a = save(model(text, weights), tmp_path, "a.onnx")
    wrong = {"w7": weights["w7"] * np.float32(0.999), "w30": weights["w30"] + normal(8, 8) * np.float32(0.3)}
    b = save(model(text, weights | wrong), tmp_path, "b.onnx")

    def shown(*words: str) -> tuple[list[str], str]:
        done = CliRunner().invoke(main, ["check", str(a), str(b), "--data", str(data.source), *words])
        return [line.split()[1] for line in done.output.partition("\n\n")[0].splitlines()[1:]], done.output

    rows, text = shown("--by-layer")
    assert {"v7", "v30", "y"} <= set(rows) and len(rows) <= 5
    assert f"not shown: {61 - len(rows)} layers, of which" in text and "7 are the same; --all shows them" in text
    rows, text = shown("--by-layer", "--all")
    assert rows == [*(f"v{i}" for i in range(60)), "y"] and "not shown" not in text
    assert shown("--all")[1].startswith("onnxq: --all goes with --by-layer")


def test_pairs_of_onnxruntimes_domain_are_read_like_onnxs(tmp_path: Path, data: Sampling) -> None:
    rounded = """g (float[4, 8] x) => (float[4, 8] y) {
        a = MatMul (x, w1)
        q = com.microsoft.QuantizeLinear (a, s, z)
        d = com.microsoft.DequantizeLinear (q, s, z)
        c = MatMul (d, w2)
        y = Tanh (c)
    }"""
    codes = {"s": np.float32(2**-12), "z": np.uint16(0)}
    found = rows(compared(tmp_path, model(CHAIN, WEIGHTS), model(rounded, WEIGHTS | codes), data))
    assert set(found) == set("bcy") and found["b"].b == "a"  # the codes do the work of the Relu
    assert all(60 < layer.sqnr < 120 for layer in found.values())


def test_numbers_that_are_none_are_an_error_without_bounds(tmp_path: Path, data: Sampling) -> None:
    wrong = WEIGHTS["w1"].copy()
    wrong[0, 0] = np.nan
    found = compared(tmp_path, model(CHAIN, WEIGHTS), model(CHAIN, WEIGHTS | {"w1": wrong}), data)
    first = found.layers[0]
    assert (first.sqnr, first.cosine, first.max_error, first.role) == (-120.0, 0.0, np.inf, "adds")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["layers"][0]["max_error"] is None


def test_floors_are_words_and_numbers() -> None:
    assert parse_floors("sqnr=30, local_sqnr=-1.5") == {"sqnr": 30.0, "local_sqnr": -1.5}
    assert [parse_floors(text) for text in ("", "sqnr", "sqnr=", "x=1", "sqnr=nan", "sqnr=1,")] == [None] * 6


def test_bits_that_no_number_has_are_told_in_a_sentence(tmp_path: Path) -> None:
    """A constant of 6-bit numbers whose last bits, which belong to none of them, are not zero."""
    proto = model("g (float[4] x) => (float[4] y) {\n f = Cast <to = 1> (c)\n y = Add (x, f)\n}")
    six = next(dtype for dtype in ir.DataType if dtype.name == "FLOAT6E2M3")
    proto.graph.initializer.append(onnx.TensorProto(name="c", data_type=int(six), dims=[1], raw_data=b"\xff"))
    with pytest.raises(BadModel, match="a constant of the model cannot be read: Packed 6-bit"):
        compared(tmp_path, proto, proto)


SCAN = """g (float[6, 4, 8] x, float[4, 8] s0) => (float[6, 4, 8] y) {
    last, states = Scan <num_scan_inputs = 1, body = turn (float[4, 8] s, float[4, 8] xi)
        => (float[4, 8] so, float[4, 8] yo) {
        [inside] a = MatMul (xi, w1)
        so = Tanh (a)
        yo = Add (so, s)
    }> (s0, x)
    y = MatMul (states, w2)
}"""


def test_what_a_scan_makes_is_the_error_of_the_scan(tmp_path: Path) -> None:
    """Of its body, whose values are others in every turn, the outputs are compared: the fault inside is the Scan's."""
    np.savez(tmp_path / "data.npz", x=normal(3, 6, 4, 8, seed=3), s0=np.zeros((3, 4, 8), np.float32))
    wrong = WEIGHTS["w1"].copy()
    wrong[:, 3] *= 0.5
    models = [model(SCAN, WEIGHTS), model(SCAN, WEIGHTS | {"w1": wrong})]
    found = compared(tmp_path, *models, Sampling(str(tmp_path / "data.npz")))
    assert {layer.a: (layer.op, layer.role) for layer in found.layers} == {
        "last": ("Scan", "adds"),
        "states": ("Scan", "adds"),
        "y": ("MatMul", "passes"),
    }
    assert rows(found)["y"].local_sqnr == 120.0 > rows(found)["y"].sqnr
    x = np.load(tmp_path / "data.npz")["x"].astype(np.float64)
    right, other = (np.tanh(x @ w.astype(np.float64)) for w in (WEIGHTS["w1"], wrong))
    noise = ((right - other)[:, -1] ** 2).sum()
    assert rows(found)["last"].sqnr == pytest.approx(10 * np.log10((right[:, -1] ** 2).sum() / noise), abs=1e-3)


def test_a_layer_without_error_of_its_own_adds_none() -> None:
    assert [role_of(sqnr, local) for sqnr, local in ((119.0, 120.0), (119.0, 119.0), (20.0, 26.1))] == [
        "passes",
        "adds",
        "passes",
    ]
    assert role_of(MAX_DB, MAX_DB) == "same" and role_of(UNEQUAL_DB, UNEQUAL_DB) is None  # that is rounding, or hidden
    assert role_of(115.0, UNEQUAL_DB) == "passes"
