"""import-weights into LSTM, GRU and RNN: gates in another order, two biases after one another, both directions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray
from tiny import normal

from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.errors import BadModel
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
H, X = 8, 6
TEXT = """g (float[T,2,6] x) => (float[T,2,4] y) {
    ["/m/LSTM"] a = LSTM <hidden_size = 8 WAY> (x, "onnx::L_1", "onnx::L_2", "onnx::L_3")
    b = Transpose <perm = [0, 2, 1, 3]> (a)  c = Reshape (b, shape)
    ["/m/LSTM_1"] d = LSTM <hidden_size = 8 WAY> (c, "onnx::L_4", "onnx::L_5", "onnx::L_6")
    e = Transpose <perm = [0, 2, 1, 3]> (d)  f = Reshape (e, shape)
    ["/fc/MatMul"] y = MatMul(f, "onnx::7")
}"""


def model_of(op: str, ends: list[str], folder: Path) -> Path:
    gates, d = GATES[op], len(ends)
    way = ', direction = "bidirectional"' if d == 2 else ""
    way += ", linear_before_reset = 1" if op == "GRU" else ""
    own = {"shape": np.array([0, 0, -1]), "onnx::7": normal(d * H, 4)}
    for i, inputs in enumerate((X, d * H)):
        own[f"onnx::L_{3 * i + 1}"] = normal(d, gates * H, inputs, seed=i)
        own[f"onnx::L_{3 * i + 2}"] = normal(d, gates * H, H, seed=2 + i)
        own[f"onnx::L_{3 * i + 3}"] = normal(d, 2 * gates * H, seed=4 + i)
    return tiny.save(tiny.model(TEXT.replace("WAY", way).replace("LSTM", op), own), folder)


def checkpoint(op: str, ends: list[str]) -> dict[str, NDArray]:
    gates, found = GATES[op], {"fc.weight": normal(4, len(ends) * H, seed=99)}
    for i, inputs in enumerate((X, len(ends) * H)):
        for j, end in enumerate(ends):
            shapes = {"weight_ih": (inputs,), "weight_hh": (H,), "bias_ih": (), "bias_hh": ()}
            for k, (part, rest) in enumerate(shapes.items()):
                found[f"m.{part}_l{i}{end}"] = normal(gates * H, *rest, seed=10 + 8 * i + 4 * j + k) / 4
    return found


def sigmoid(x: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-x))


def torchs(op: str, x: NDArray, w: NDArray, r: NDArray, b: NDArray, c: NDArray) -> NDArray:
    """By the equations in torch's documentation, over time: [T, N, H]."""
    h, cell, found = np.zeros((x.shape[1], H)), np.zeros((x.shape[1], H)), []
    for step in x:
        ours, last = np.split(step @ w.T + b, GATES[op], -1), np.split(h @ r.T + c, GATES[op], -1)
        if op == "RNN":
            h = np.tanh(ours[0] + last[0])
        elif op == "GRU":
            reset, update = (sigmoid(ours[i] + last[i]) for i in range(2))
            h = (1 - update) * np.tanh(ours[2] + reset * last[2]) + update * h
        else:
            i, f, g, o = (ours[k] + last[k] for k in range(4))
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(cell)
        found.append(h)
    return np.stack(found)


@pytest.mark.parametrize("ends", [[""], ["", "_reverse"]], ids=["forward", "both"])
@pytest.mark.parametrize("op", GATES)
def test_it_computes_what_torch_does(op: str, ends: list[str], tmp_path: Path) -> None:
    model, tensors = model_of(op, ends, tmp_path), checkpoint(op, ends)
    path, exact = tmp_path / "w.safetensors", ImportOptions(accuracy_level=0)
    write_arrays(path, ((name, lambda x=x: x) for name, x in tensors.items()), replace=True)
    done = import_weights(model, path, tmp_path / "q.onnx", options=exact)
    assert not done.match.bare and not done.match.unused
    assert {choice.reason for choice in done.plan} == {"float in the checkpoint"}
    x = wanted = normal(5, 2, X)
    for i in range(2):
        made = []
        for end in ends:
            parts = (tensors[f"m.{part}_l{i}{end}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            y = torchs(op, wanted[::-1] if end else wanted, *parts)
            made.append(y[::-1] if end else y)
        wanted = np.concatenate(made, -1)
    (y,) = Session(done.output).run({"x": x})
    np.testing.assert_allclose(y, wanted @ tensors["fc.weight"].T, atol=1e-5)


@pytest.mark.parametrize("what", ["missing", "shape", "number", "third layer"])
def test_one_that_does_not_fit_as_a_whole_is_refused(what: str, tmp_path: Path) -> None:
    model, tensors = model_of("LSTM", [""], tmp_path), checkpoint("LSTM", [""])
    if what == "missing":
        del tensors["m.bias_hh_l1"]
    elif what == "third layer":
        tensors["m.weight_ih_l2"] = normal(4 * H, H)
    else:
        tensors["m.weight_hh_l1"] = np.float32(3) if what == "number" else normal(4 * H, H + 1)
    tensors = {name: np.asarray(x) for name, x in tensors.items()}
    np.savez(tmp_path / "w.npz", **tensors)
    with pytest.raises(BadModel, match=r"onnx::L_1.* nothing"):
        import_weights(model, tmp_path / "w.npz", tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"m.bias_ih_l0": (4 * H, 1)}, id="a bias that is a matrix"),
        pytest.param({"m.bias_ih_l0": (4 * H, 3), "m.bias_hh_l0": (4 * H, 2)}, id="two that do not join"),
        pytest.param({"m.weight_ih_l0": (4 * H, 0)}, id="no inputs"),
        pytest.param({"m.weight_ih_l0": (0, X)}, id="no gates"),
        pytest.param({"m.weight_ih_l0": (0, 0)}, id="neither"),
        pytest.param({"m.weight_ih_l0": (4 * H,)}, id="a weight that is a vector"),
        pytest.param({"m.bias_ih_l0": (0,), "m.bias_hh_l0": (8 * H,)}, id="one as long as both"),
        pytest.param({"m.bias_ih_l0": (4,), "m.bias_hh_l0": (8 * H - 4,)}, id="as long together"),
    ],
)
def test_tensors_of_other_ranks_are_none_of_a_layer(changed: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    model, tensors = model_of("LSTM", [""], tmp_path), checkpoint("LSTM", [""])
    np.savez(tmp_path / "w.npz", **(tensors | {name: np.ones(shape, np.float32) for name, shape in changed.items()}))
    with pytest.raises(BadModel, match=r"onnx::L_1.* nothing"):
        import_weights(model, tmp_path / "w.npz", tmp_path / "q.onnx")


def test_a_weight_that_is_a_number_stays(tmp_path: Path) -> None:
    """No runtime takes such a model, but a checkpoint must not make it worse."""
    text = """g (float[T,2,6] x) => (float[T,1,2,8] a, float[T,2,4] y) {
        ["/m/LSTM"] a = LSTM <hidden_size = 8> (x, w, r)  ["/fc/MatMul"] y = MatMul(x, "fc.weight")
    }"""
    own = {"w": np.array(1, np.float32), "r": normal(1, 4 * H, H), "fc.weight": normal(X, 4)}
    tensors = checkpoint("LSTM", [""]) | {"fc.weight": normal(4, X)}
    tensors = {name: x for name, x in tensors.items() if not name.endswith("_l1")}
    np.savez(tmp_path / "w.npz", **tensors)
    model, options = tiny.save(tiny.model(text, own), tmp_path), ImportOptions(partial=True)
    done = import_weights(model, tmp_path / "w.npz", tmp_path / "q.onnx", check=False, options=options)
    assert "m.weight_ih_l0" in done.match.unused


@pytest.mark.parametrize("second", ["/m/LSTM_1", "/m_1/LSTM"], ids=["one module", "as the older exporter calls it"])
@pytest.mark.parametrize("is_same", [True, False])
def test_a_module_that_is_called_twice_gets_its_layer_twice(tmp_path: Path, second: str, is_same: bool) -> None:
    """If both nodes have the same numbers, of which exporters keep one or make a copy."""
    text = f"""g (float[T,2,6] x, float[T,2,6] z) => (float[T,1,2,8] y, float[T,1,2,8] u) {{
        ["/m/LSTM"] y = LSTM <hidden_size = 8> (x, "onnx::L_1", "onnx::L_2", "onnx::L_3")
        ["{second}"] u = LSTM <hidden_size = 8> (z, "onnx::L_4", "onnx::L_2", "onnx::L_3")
    }}"""
    own = {"onnx::L_1": normal(1, 4 * H, X), "onnx::L_2": normal(1, 4 * H, H, seed=1)}
    own |= {"onnx::L_3": normal(1, 8 * H, seed=2), "onnx::L_4": normal(1, 4 * H, X, seed=0 if is_same else 3)}
    tensors = {name: x for name, x in checkpoint("LSTM", [""]).items() if "l0" in name}
    np.savez(tmp_path / "w.npz", **tensors)
    model = tiny.save(tiny.model(text, own), tmp_path)
    if not is_same:
        with pytest.raises(BadModel, match=r"onnx::L_4.* nothing"):
            import_weights(model, tmp_path / "w.npz", tmp_path / "q.onnx")
        return
    done = import_weights(model, tmp_path / "w.npz", tmp_path / "q.onnx")
    feed = {"x": normal(5, 2, X), "z": normal(5, 2, X, seed=7)}
    parts = [tensors[f"m.{part}_l0"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    for found, given in zip(Session(done.output).run(feed), feed.values(), strict=True):
        np.testing.assert_allclose(found[:, 0], torchs("LSTM", given, *parts), atol=1e-5)
