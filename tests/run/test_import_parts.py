"""import-weights of checkpoints that hold a part of the model: refused but for --partial, which says what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from tiny import normal

from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.cli import main
from onnxq.errors import BadModel
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")

TEXT = """g (int64[M] i) => (float[M,48] y) {
    e = Gather("m.embed.weight", i)  n = Mul(e, "m.norm.weight")
    ["/m/up/MatMul"] h = MatMul(n, "onnx::1")  b = Add(h, "m.up.bias")
    c = MatMul("m.inv_freq", "m.ones")  d = Cos(c)  r = Mul(b, d)  s = Add(r, "/Constant_output_0")
    ["/m/lm_head/MatMul"] y = MatMul(s, "onnx::2")
}"""
ROPE = (10000 ** -(np.arange(16) / 16)).astype(np.float32).reshape(16, 1)
OWN = {
    "m.embed.weight": normal(48, 16),
    "m.norm.weight": 1 + normal(16, seed=1) / 2000,
    "onnx::1": normal(16, 16, seed=2),
    "m.up.bias": normal(16, seed=3),
    "onnx::2": normal(16, 48, seed=4),
}
BUFFERS = {
    "m.inv_freq": ROPE.T.copy().reshape(1, 16),
    "m.ones": np.eye(16, dtype=np.float32),
    "/Constant_output_0": np.where(np.arange(16) < 5, 0, -1e4).astype(np.float32),
}
NEW = {
    "embed.weight": normal(48, 16, seed=5),
    "norm.weight": 1 + normal(16, seed=6) / 20,
    "up.weight": normal(16, 16, seed=7),
    "up.bias": normal(16, seed=8),
    "lm_head.weight": normal(48, 16, seed=9),
}
UNCHECKED = ImportOptions(match="unchecked", accuracy_level=0)


def save(path: Path, tensors: dict[str, NDArray]) -> Path:
    path.parent.mkdir(exist_ok=True)
    write_arrays(path, ((name, lambda x=x: x) for name, x in tensors.items()), replace=True)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.model(TEXT, OWN | BUFFERS), tmp_path)


def output_of(tensors: dict[str, NDArray]) -> NDArray:
    h = (tensors["embed.weight"] * tensors["norm.weight"]) @ tensors["up.weight"].T + tensors["up.bias"]
    s = h * np.cos(BUFFERS["m.inv_freq"] @ BUFFERS["m.ones"]) + BUFFERS["/Constant_output_0"]
    return s @ tensors["lm_head.weight"].T


def require(path: Path, wanted: NDArray) -> None:
    (y,) = Session(path).run({"i": np.arange(48)})
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_computed_constants_are_not_asked_for(tmp_path: Path, model: Path) -> None:
    """Frequencies, masks, identities: no checkpoint has them."""
    done = import_weights(model, save(tmp_path / "w.safetensors", NEW), tmp_path / "q.onnx")
    assert not done.match.bare and not done.match.kept
    require(done.output, output_of(NEW))


@pytest.mark.parametrize("name", NEW)
def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path, model: Path, name: str) -> None:
    path = save(tmp_path / "w.safetensors", {other: x for other, x in NEW.items() if other != name})
    told = {"up.weight": "/m/up/MatMul", "lm_head.weight": "/m/lm_head/MatMul"}.get(name, f"m.{name}")
    with pytest.raises(BadModel, match=f"': {told} of the model gets nothing; --partial"):
        import_weights(model, path, tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()
    arguments = ["import-weights", str(model), str(path), "--partial", "-o", str(tmp_path / "q.onnx")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0 and f"kept from the model: {told}\n" in result.stdout
    assert "never imported" not in result.stdout
    own = {"up.weight": OWN["onnx::1"].T, "lm_head.weight": OWN["onnx::2"].T} | {
        key.removeprefix("m."): x for key, x in OWN.items() if key.startswith("m.")
    }
    require(tmp_path / "q.onnx", output_of(NEW | {name: own[name]}))


def test_a_norm_of_another_length_does_not_fit(tmp_path: Path, model: Path) -> None:
    path = save(tmp_path / "w.safetensors", NEW | {"norm.weight": normal(8)})
    with pytest.raises(BadModel, match=r"'norm.weight' is of shape \[8\], that of the model of \[16\]; --partial"):
        import_weights(model, path, tmp_path / "q.onnx")


@pytest.mark.parametrize("is_folder", [True, False])
def test_one_file_of_several_is_a_part(tmp_path: Path, model: Path, is_folder: bool) -> None:
    path = save(tmp_path / "ck" / "model-00002-of-00005.safetensors", NEW)
    with pytest.raises(BadModel, match=r"of the 5 files of 'model' one is given; --partial"):
        import_weights(model, path.parent if is_folder else path, tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()
    import_weights(model, path, tmp_path / "q.onnx", options=ImportOptions(partial=True))
    require(tmp_path / "q.onnx", output_of(NEW))


@pytest.mark.parametrize(
    ("said", "is_tied"),
    [
        ({"tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": False, "model_type": "llama"}, False),
        ({"model_type": "gemma"}, True),
        ({"hidden_size": 16}, False),
    ],
    ids=["said", "denied", "by default", "nothing said"],
)
def test_a_tied_checkpoint_gives_the_head_what_the_table_gets(
    tmp_path: Path, model: Path, said: dict[str, object], is_tied: bool
) -> None:
    path = save(tmp_path / "ck" / "model.safetensors", {n: x for n, x in NEW.items() if n != "lm_head.weight"})
    (tmp_path / "ck" / "config.json").write_text(json.dumps(said))
    if not is_tied:
        with pytest.raises(BadModel, match="/m/lm_head/MatMul of the model gets nothing"):
            import_weights(model, path.parent, tmp_path / "q.onnx")
        return
    done = import_weights(model, path.parent, tmp_path / "q.onnx")
    assert done.match.proposed["/m/lm_head/MatMul"] == "tied to the table of words"
    require(done.output, output_of(NEW | {"lm_head.weight": NEW["embed.weight"]}))


def test_places_are_no_table_of_words(tmp_path: Path) -> None:
    """Of the shape of the last product, as BERT's pooler is that its checkpoint for masked words does not have."""
    text = """g (int64[M] input_ids, int64[M] position_ids) => (float[M,16] y) {
        w = Gather("words.weight", input_ids)  p = Gather("places.weight", position_ids)  x = Add(w, p)
        ["/pooler/MatMul"] y = MatMul(x, "onnx::1")
    }"""
    own = {"words.weight": normal(48, 16), "places.weight": normal(16, 16, seed=1), "onnx::1": normal(16, 16, seed=2)}
    new = {"words.weight": normal(48, 16, seed=3), "places.weight": normal(16, 16, seed=4)}
    path = save(tmp_path / "ck" / "model.safetensors", new)
    (tmp_path / "ck" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(BadModel, match="/pooler/MatMul of the model gets nothing"):
        import_weights(tiny.save(tiny.model(text, own), tmp_path), path.parent, tmp_path / "q.onnx")


@pytest.mark.parametrize("options", [ImportOptions(accuracy_level=0), UNCHECKED])
def test_norms_follow_where_all_names_begin_otherwise(tmp_path: Path, model: Path, options: ImportOptions) -> None:
    """Norms are near 1: raw numbers are always alike, and tell nothing."""
    path = save(tmp_path / "w.safetensors", {f"module.{name}": x for name, x in NEW.items()})
    done = import_weights(model, path, tmp_path / "q.onnx", options=options)
    assert not done.match.unused
    require(done.output, output_of(NEW))


def test_a_norm_whose_name_tells_nothing(tmp_path: Path, model: Path) -> None:
    """It is refused unless its numbers are the model's own; unchecked, it is the only one of its length and word."""
    path = save(tmp_path / "w.safetensors", {name.replace("norm.", "last_norm."): x for name, x in NEW.items()})
    words = "last_norm.weight goes nowhere, and m.norm.weight, of such shapes, gets nothing"
    with pytest.raises(BadModel, match=words):
        import_weights(model, path, tmp_path / "q.onnx")
    done = import_weights(model, path, tmp_path / "q.onnx", options=UNCHECKED)
    require(done.output, output_of(NEW))
    plus_one = {name: x for name, x in NEW.items() if name != "norm.weight"}
    save(path, plus_one | {"last_norm.weight": OWN["m.norm.weight"] + 1})
    done = import_weights(model, path, tmp_path / "r.onnx")
    assert not done.match.bare and done.match.unused == ["last_norm.weight"]


@pytest.mark.parametrize("name", ["c.weight", "c.bias", "b.weight", "b.running_var"])
def test_what_is_folded_into_a_kernel_is_asked_for(tmp_path: Path, name: str) -> None:
    text = """g (float[1,3,8,8] x) => (float[1,4,6,6] y) {
        c = Conv(x, "c.weight", "c.bias")
        y = BatchNormalization(c, "b.weight", "b.bias", "b.running_mean", "b.running_var")
    }"""
    own = {"c.weight": normal(4, 3, 3, 3), "c.bias": normal(4)}
    own |= {f"b.{part}": 1 + normal(4) ** 2 for part in ("weight", "bias", "running_mean", "running_var")}
    model = tiny.save(tiny.model(text, own), tmp_path)
    path = save(tmp_path / "w.safetensors", {other: 2 * x for other, x in own.items()})
    import_weights(model, path, tmp_path / "q.onnx")
    save(path, {other: 2 * x for other, x in own.items() if other != name})
    with pytest.raises(BadModel, match=f"': {name} of the model gets nothing; --partial"):
        import_weights(model, path, tmp_path / "r.onnx")
