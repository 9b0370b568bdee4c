"""4-bit weights from a checkpoint: the saved file computes what unpacking and multiplying does, bit for bit stored."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from tiny import normal

from onnxq import layouts, targets
from onnxq.checkpoints.import_weights import ImportOptions, import_weights
from onnxq.checkpoints.tensors import open_checkpoint
from onnxq.cli import main
from onnxq.errors import BadData, BadModel
from onnxq.model.load import is_quantized, load_model
from onnxq.runtime.session import Session

UNCHECKED = ImportOptions(match="unchecked")
PARTIAL = ImportOptions(partial=True)
pytestmark = pytest.mark.usefixtures("quick")
#: Three products as exporters write them: a Gemm of a named weight, a MatMul behind a Transpose with its bias in an
#: Add, and one that only its node's name tells; the last one is not in the checkpoint.
TEXT = """g (float[M,128] x) => (float[M,16] y) {
    [n1] a = Gemm <transB = 1> (x, "model.up.weight", "model.up.bias")
    t = Transpose <perm = [1, 0]> ("model.down.weight")
    p = MatMul(a, t)  b = Add("model.down.bias", p)
    ["/model/gate/MatMul"] c = MatMul(b, onnx_MatMul_7)
    [head] y = MatMul(c, last)
}"""
SHAPES = {"model.up": (96, 128, 64), "model.down": (64, 96, 32), "model.gate": (48, 64, 64)}
CONSTANTS = {
    "model.up.weight": normal(96, 128),
    "model.up.bias": normal(96, seed=1),
    "model.down.weight": normal(64, 96, seed=2),
    "model.down.bias": normal(64, seed=3),
    "onnx_MatMul_7": normal(64, 48, seed=4),
    "last": normal(48, 16, seed=5),
}


def checkpoint() -> dict[str, NDArray]:
    """Random bytes: every code appears."""
    rng, tensors = np.random.default_rng(0), {}
    for prefix, (n, k, group) in SHAPES.items():
        tensors[f"{prefix}.weight_4bit"] = rng.integers(0, 256, (n, k // 2)).astype(np.uint8)
        tensors[f"{prefix}.scales_4bit"] = (rng.random((n, k // group)) * 0.02 + 0.01).astype(np.float16)
        tensors[f"{prefix}.bias"] = rng.standard_normal(n).astype(np.float16)
    return tensors


def unpacked(tensors: Mapping[str, NDArray], prefix: str) -> NDArray[np.float32]:
    """[out, in] by the definition, in plain numpy: the even input is in the low nibble, code 8 is zero."""
    packed, scales = tensors[f"{prefix}.weight_4bit"], tensors[f"{prefix}.scales_4bit"].astype(np.float32)
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1).astype(np.float32) - 8
    return codes * np.repeat(scales, codes.shape[1] // scales.shape[1], axis=1)


def write_safetensors(path: Path, tensors: Mapping[str, NDArray]) -> Path:
    names = {"uint8": "U8", "float16": "F16", "float32": "F32"}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, x in tensors.items():
        header[name] = {"dtype": names[x.dtype.name], "shape": x.shape, "data_offsets": [start, start + x.nbytes]}
        start += x.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for x in tensors.values()))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path)


@pytest.mark.parametrize("target", tiny.TARGETS)
@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_the_result_is_unpack_then_multiply(tmp_path: Path, model: Path, kind: str, target: str) -> None:
    tensors = checkpoint()
    path = tmp_path / f"weights.{kind}"
    if kind == "npz":
        np.savez(path, **tensors)
    else:
        write_safetensors(path, tensors)
    done = import_weights(model, path, tmp_path / "q.onnx", target=target, options=PARTIAL)
    assert done.match.missing == ["head"]
    assert done.match.prefixes == {"n1": "model.up", "p": "model.down", "/model/gate/MatMul": "model.gate"}
    assert not done.match.surplus and not done.match.misfits and not done.match.unused
    x = np.random.default_rng(1).standard_normal((5, 128)).astype(np.float32)
    y = x
    for prefix in SHAPES:
        y = y @ unpacked(tensors, prefix).T + tensors.get(f"{prefix}.bias", 0)
    wanted = y @ CONSTANTS["last"]
    (plain,) = Session(done.output, optimize=False, library=False).run({"x": x})
    if (
        "com.microsoft" not in targets.get(target).domains
    ):  # whose MatMulNBits rounds activations to int8 even without the optimizer
        np.testing.assert_allclose(plain, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    for library in (False, True):
        (y,) = Session(done.output, library=library).run({"x": x})
        assert tiny.sqnr(wanted, y) > 33
    assert done.check is not None and done.check.sqnr > 33


def test_bytes_are_kept(tmp_path: Path, model: Path) -> None:
    """Codes and scales of the file are those of the checkpoint: nothing was quantized again."""
    tensors = checkpoint()
    path = write_safetensors(tmp_path / "w.safetensors", tensors)
    saved = onnx.load(import_weights(model, path, tmp_path / "q.onnx", target="onnxq", options=PARTIAL).output)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in saved.graph.initializer}
    node = next(node for node in saved.graph.node if node.name == "p")
    weight, scales = (constants[name] for name in node.input[1:3])
    assert scales.dtype == np.float16
    q = layouts.from_linear4bit(tensors["model.down.weight_4bit"], tensors["model.down.scales_4bit"])
    back = layouts.from_onnxq_tiles(q.format, weight, scales, None, n=64, k=96, block=32)
    np.testing.assert_array_equal(back.codes, q.codes)
    np.testing.assert_array_equal(back.scales, q.scales)


BREAKAGES = {
    "surplus": ("other", None, "the model has no product called other"),
    "no scales": ("model.up.scales_4bit", None, "'model.up.weight_4bit' has no model.up.scales_4bit"),
    "no weight": ("model.up.weight_4bit", None, "'model.up.scales_4bit' has no model.up.weight_4bit"),
    "size": ("model.up.weight_4bit", np.zeros((96, 32), np.uint8), "is of 96 × 64 weights, node 'n1' of 96 × 128"),
    "other group": ("model.up.group_size", np.array([32]), "128 inputs in groups of 32 do not have 2 scales a row"),
    "no group": ("model.up.group_size", np.array([0.5]), "'model.up.group_size' is no single positive integer"),
    "uneven": (
        "model.up.scales_4bit",
        np.ones((96, 3), np.float16),
        "3 scales for 128 inputs fit no groups of a usual",
    ),
    "infinite": ("model.up.scales_4bit", np.full((96, 2), np.inf, np.float16), "numbers that are not finite"),
    "type": ("model.up.weight_4bit", np.zeros((96, 64), np.int32), "weight_4bit is int32"),
    "bias": ("model.up.bias", np.zeros(5, np.float16), "'model.up.bias' is of shape [5], node 'n1' makes 96 numbers"),
}


@pytest.mark.parametrize("what", BREAKAGES)
def test_what_does_not_fit_is_named(tmp_path: Path, model: Path, what: str) -> None:
    name, changed, sentence = BREAKAGES[what]
    tensors = checkpoint()
    if what == "surplus":
        tensors |= {"other.weight_4bit": np.zeros((4, 4), np.uint8), "other.scales_4bit": np.ones((4, 1), np.float16)}
    elif changed is None:
        del tensors[name]
    else:
        tensors[name] = changed
    path = tmp_path / "w.npz"
    np.savez(path, **tensors)
    with pytest.raises(BadModel) as refusal:
        import_weights(model, path, tmp_path / "q.onnx")
    assert sentence in str(refusal.value)
    assert not (tmp_path / "q.onnx").exists()
    done = import_weights(model, path, tmp_path / "q.onnx", options=PARTIAL)
    assert len(done.match.blocks) == (3 if what == "surplus" else 2)
    assert done.check is not None and done.check.sqnr > 33


def test_a_checkpoint_of_another_model(tmp_path: Path, model: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.zeros(3))
    with pytest.raises(BadModel, match=r"has nothing for .* products are n1, p, .*: it holds no tensors of a kind"):
        import_weights(model, tmp_path / "w.npz", tmp_path / "q.onnx", options=PARTIAL)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is neither a safetensors nor an npz file"),
        (b"\x00" * 100, "is neither a safetensors nor an npz file"),
        (struct.pack("<Q", 1 << 40) + b"{}", "is neither"),
        (struct.pack("<Q", 2) + b"[]", "its header does not describe tensors"),
        (struct.pack("<Q", 9) + b'{"a": 12}', "its header does not describe tensors"),
        (struct.pack("<Q", 56) + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0, 8]}} ', "is damaged"),
        (struct.pack("<Q", 55) + b'{"a":{"dtype":"F1","shape":[2],"data_offsets":[0, 8]}} 01234567', "is of type F1"),
        (b"PK\x05\x06" + b"\x00" * 18 + b"x", "no weight"),
    ],
    ids=["empty", "zeros", "long", "list", "number", "cut", "type", "zip"],
)
def test_damaged_checkpoints(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    if sentence == "no weight":
        assert list(open_checkpoint(path)) == []
        return
    with pytest.raises(BadData, match=sentence):
        dict(open_checkpoint(path))


def test_the_command(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write_safetensors(tmp_path / "w.safetensors", checkpoint() | {"norm.weight": np.ones(4, np.float32)})
    result = CliRunner().invoke(main, ["import-weights", "model.onnx", "w.safetensors", "-t", "onnxq", "--partial"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("model.linear4bit.onnx: 3 products from w.safetensors for onnxq")
    for words in (
        "kept from the model: head",
        "other tensors: norm.weight",
        "of float",
        "int4 b64",
        "not in the checkpoint",
        "SQNR",
    ):
        assert words in result.stdout
    again = CliRunner().invoke(main, ["import-weights", "model.onnx", "w.safetensors", "--json", "-f", "--partial"])
    table = json.loads(again.stdout)
    assert table["prefixes"]["n1"] == "model.up" and table["missing"] == table["bare"] == ["head"]


def test_floats_that_were_imported_are_a_float_model(tmp_path: Path) -> None:
    """Which takes other floats, and codes; those make it a quantized one."""
    model, floats = tiny.save(tiny.model(TEXT, CONSTANTS), tmp_path), tmp_path / "first.onnx"
    for seed, name in enumerate(("first", "second")):
        tensors = {key: x + normal(*x.shape, seed=9 + seed) / 8 for key, x in CONSTANTS.items() if key != "last"}
        np.savez(tmp_path / f"{name}.npz", **tensors)
        source = floats if seed else model
        made = import_weights(source, tmp_path / f"{name}.npz", tmp_path / f"{name}.onnx", options=PARTIAL).output
        assert is_quantized(load_model(made)) is None
    np.savez(tmp_path / "codes.npz", **checkpoint())
    coded = import_weights(
        floats, tmp_path / "codes.npz", tmp_path / "codes.onnx", options=ImportOptions(match="unchecked", partial=True)
    ).output
    with pytest.raises(BadModel, match="is quantized already"):
        import_weights(coded, tmp_path / "codes.npz", tmp_path / "again.onnx")
