"""import-weights where checkpoint and model are not made for each other: any groups, no model, a layer it lacks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from tiny import normal

from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.checkpoints.linear4bit import Linear4Bit, save_layers
from onnxq.cli import main
from onnxq.errors import BadData, BadModel, BadRecipe
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
EXACT = ImportOptions(accuracy_level=0)


def layer(n: int, k: int, group: int, *, bias: bool = True) -> Linear4Bit:
    rng = np.random.default_rng([n, k, group])
    scales = rng.uniform(0.01, 0.02, (n, -(-k // group))).astype(np.float16)
    return Linear4Bit.new(
        rng.integers(0, 256, (n, k // 2), np.uint8), scales, group, rng.standard_normal(n) if bias else None
    )


def error(output: Path, feeds: dict[str, NDArray], wanted: NDArray, name: str = "y", *, library: bool) -> float:
    session = Session(output, library=library)
    y = dict(zip(session.outputs, session.run(feeds), strict=True))[name]
    assert y.shape == wanted.shape
    return float(np.linalg.norm(y - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("target", tiny.TARGETS)
@pytest.mark.parametrize(
    ("k", "group", "label"),
    [
        (130, 64, "int4 b64"),
        (192, 128, "int4 b128"),
        (192, 96, "int4 b32"),
        (1000, 1000, "int4 b256"),
        (64, 4, "int4 b4 stored"),
        (130, 20, "int4 b20 stored"),
        (130, 65, "int8 b65 stored"),
        (10, 10, "int4 b16"),
    ],
)
def test_groups_of_any_size_in_a_model_made_of_the_layer(
    tmp_path: Path, k: int, group: int, label: str, target: str
) -> None:
    """Exact products are within 1e-6 of the unpacked ones; with rounded activations within the documented 0.01."""
    made = layer(37, k, group)
    made.save(tmp_path / "w.safetensors")
    x = np.random.default_rng(0).standard_normal((6, k)).astype(np.float32)
    wanted = x.astype(np.float64) @ made.unpack().astype(np.float64).T + made.bias
    for options, limit in ((EXACT, 1e-6), (None, 0.01)):
        name = f"{limit}.onnx"
        done = import_weights(None, tmp_path / "w.safetensors", tmp_path / name, target=target, options=options)
        (choice,) = done.plan
        has_block = group in (64, 128) and k % group == 0
        is_stored = target in ("coreml", "qnn") or (target == "tensorrt" and not has_block)
        is_stored |= options is EXACT and target in ("onnx", "onnx-25")
        computes = "stored" if is_stored and "stored" not in label else ""
        assert choice.label == f"{label} {computes}".strip()
        assert bool(choice.reason) == ("stored" in choice.label)
        for library in (False, True):
            assert error(tmp_path / name, {"x": x}, wanted, library=library) <= limit
        assert done.check is not None and done.check.sqnr > (100 if options is EXACT else 38)


def test_a_group_that_the_checkpoint_does_not_tell(tmp_path: Path) -> None:
    made = layer(16, 192, 128)
    path = tmp_path / "w.npz"
    np.savez(path, **{"up.weight_4bit": made.packed, "up.scales_4bit": made.scales})
    with pytest.raises(BadModel, match="2 scales for 192 inputs fit groups of 128 and of 96: name the size of a group"):
        import_weights(None, path, tmp_path / "q.onnx")
    done = import_weights(None, path, tmp_path / "q.onnx", options=ImportOptions(group=128, accuracy_level=0))
    x = np.ones((1, 192), np.float32)
    assert error(done.output, {"x": x}, x @ made.unpack().T, library=True) <= 1e-6
    with pytest.raises(BadModel, match="192 inputs in groups of 64 do not have 2 scales a row"):
        import_weights(None, path, tmp_path / "r.onnx", options=ImportOptions(group=64))
    with pytest.raises(BadRecipe, match="invalid group size 0"):
        ImportOptions(group=0)
    with pytest.raises(BadRecipe, match="invalid accuracy level 9"):
        ImportOptions(accuracy_level=9)


def test_a_checkpoint_of_several_layers_is_a_model_of_several_products(tmp_path: Path) -> None:
    layers = {"a.up": layer(16, 64, 32), "a.down": layer(16, 64, 32, bias=False), "tiny": layer(3, 4, 4)}
    save_layers(tmp_path / "w.npz", layers)
    done = import_weights(None, tmp_path / "w.npz", tmp_path / "q.onnx", target="onnxq", options=EXACT)
    assert done.match.missing == [] and set(done.match.prefixes.values()) == set(layers)
    feeds = {f"{name}.x": normal(2, made.inputs) for name, made in layers.items()}
    for name, made in layers.items():
        assert error(done.output, feeds, made.forward_unpack(feeds[f"{name}.x"]), f"{name}.y", library=True) <= 1e-6
    np.savez(tmp_path / "none.npz", x=np.ones(3))
    with pytest.raises(BadData, match="holds no quantized layers of a kind that onnxq reads"):
        import_weights(None, tmp_path / "none.npz", tmp_path / "r.onnx")


def test_weights_that_are_equal_in_the_float_model_are_not_confused(tmp_path: Path) -> None:
    """Both are zeros before training, so that a model has them once; the checkpoint names each product."""
    text = "m (float[M,64] x) => (float[M,64] y) { [up] h = MatMul(x, w1)  [down] y = MatMul(h, w2) }"
    zeros = np.zeros((64, 64), np.float32)
    path = tiny.save(tiny.model(text, {"w1": zeros, "w2": zeros.copy()}), tmp_path)
    layers = {"up": layer(64, 64, 32), "down": layer(64, 64, 16, bias=False)}
    save_layers(tmp_path / "w.npz", layers)
    done = import_weights(path, tmp_path / "w.npz", tmp_path / "q.onnx", options=EXACT)
    x = normal(3, 64)
    wanted = layers["down"].forward_unpack(layers["up"].forward_unpack(x))
    assert error(done.output, {"x": x}, wanted, library=False) <= 2e-6


MODEL = """m (float[B,S,64] x) => (float[B,S,64] hidden) {
    h = MatMul(x, w)
    hidden = Tanh(h)
    flag = Shape(x)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.model(MODEL, {"w": normal(64, 64)}), tmp_path)


@pytest.mark.parametrize("value", ["hidden", "h", "x"])
def test_a_layer_that_the_model_does_not_have_is_added(tmp_path: Path, model: Path, value: str) -> None:
    head = layer(20, 64, 32)
    head.save(tmp_path / "w.safetensors", "lm_head")
    with pytest.raises(BadModel, match="the model has no product called lm_head"):
        import_weights(model, tmp_path / "w.safetensors", tmp_path / "q.onnx")
    done = import_weights(
        model,
        tmp_path / "w.safetensors",
        tmp_path / "q.onnx",
        options=ImportOptions(accuracy_level=0, add={"lm_head": value}),
    )
    assert [output.name for output in onnx.load(done.output).graph.output] == ["hidden", "lm_head"]
    x = normal(2, 3, 64)
    read = {"x": x, "h": x @ normal(64, 64), "hidden": np.tanh(x @ normal(64, 64))}[value]
    assert error(done.output, {"x": x}, head.forward_unpack(read), "lm_head", library=False) <= 2e-6
    assert len(done.match.missing) == 1


@pytest.mark.parametrize(
    ("add", "sentence"),
    [
        ({"lm_head": "nowhere"}, "the model has no value 'nowhere'"),
        ({"other": "hidden"}, "the checkpoint holds no layer 'other' to add; it holds lm_head"),
        ({"lm_head": "flag"}, "value 'flag' is of .*type.*: layer 'lm_head' multiplies floats"),
    ],
)
def test_what_cannot_be_added(tmp_path: Path, model: Path, add: dict[str, str], sentence: str) -> None:
    layer(20, 64, 32).save(tmp_path / "w.safetensors", "lm_head")
    with pytest.raises((BadModel, BadData), match=sentence):
        import_weights(model, tmp_path / "w.safetensors", tmp_path / "q.onnx", options=ImportOptions(add=add))
    layer(20, 32, 32).save(tmp_path / "narrow.safetensors", "lm_head")
    options = ImportOptions(add={"lm_head": "hidden"})
    with pytest.raises(BadModel, match="value 'hidden' has 64 numbers a row; layer 'lm_head' takes 32"):
        import_weights(model, tmp_path / "narrow.safetensors", tmp_path / "q.onnx", options=options)


def test_the_words(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    layer(20, 64, 32).save("w.safetensors", "lm_head")
    run = CliRunner().invoke
    done = run(main, ["import-weights", "w.safetensors", "--accuracy-level", "0", "-t", "onnxq", "--json"])
    assert done.exit_code == 0, done.output
    table = json.loads(done.stdout)
    assert table["output"] == "w.linear4bit.onnx" and table["check"]["sqnr"] > 100
    words = ["import-weights", "model.onnx", "w.safetensors", "--add", "lm_head=hidden", "--group-size", "32"]
    done = run(main, words)
    assert done.exit_code == 0, done.output
    assert "1 product from w.safetensors" in done.stdout
    assert "invalid --add 'lm_head'" in run(main, [*words, "--add", "lm_head", "-f"]).stderr
    assert "3 files were given" in run(main, ["import-weights", "a", "b", "c"]).stderr
