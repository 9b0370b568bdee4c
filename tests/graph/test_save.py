"""Saving: what is in the files, what is left behind if it fails, and what may be overwritten."""

from __future__ import annotations

import errno
import hashlib
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import tiny
from tiny import normal

from onnxq.errors import BadModel, BadOutput, BadRecipe
from onnxq.output import write
from onnxq.passes.quantize.store_weights import StoreWeights
from onnxq.plan import Choice, Method, Plan

W = normal(64, 32)
TEXT = "g (float[N,64] x) => (y) { [n] a = MatMul(x, u)  [o] b = MatMul(x, v)  c = Add(a, t)  y = Add(b, c) }"
CONSTANTS = {"u": W, "v": W.copy(), "t": normal(32)}


@pytest.fixture
def external(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even small models get a data file."""
    monkeypatch.setattr(write, "SINGLE_FILE_BYTES", 0)


def model() -> ir.Model:
    return tiny.read(tiny.model(TEXT, CONSTANTS))


def data_of(path: Path) -> Path:
    (data,) = write.own_data(path)
    return data


def stored(word: str = "int8") -> ir.Model:
    """A model whose weights are not computed yet."""
    made = model()
    StoreWeights(Plan("w8a16", "onnx", {k: Choice(k, "MatMul", Method.STORED, word) for k in "no"}))(made)
    return made


def test_a_small_model_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nbytes = write.save(model(), path)
    assert [f.name for f in tmp_path.iterdir()] == ["m.onnx"]
    assert nbytes == path.stat().st_size
    x = normal(2, 64)
    np.testing.assert_array_equal(tiny.evaluate(onnx.load(path), x=x)[0], tiny.evaluate(model(), x=x)[0])


@pytest.mark.usefixtures("external")
def test_a_large_model_keeps_its_weights_beside_it(tmp_path: Path) -> None:
    """Large ones aligned in the data file, small ones in the model."""
    path = tmp_path / "m.onnx"
    done: list[int] = []
    nbytes = write.save(model(), path, done.append)
    (data,) = write.own_data(path)
    assert {f.name for f in tmp_path.iterdir()} == {"m.onnx", data.name}
    assert re.fullmatch(r"m\.onnx\.[0-9a-f]{16}\.data", data.name)
    assert nbytes == sum(f.stat().st_size for f in tmp_path.iterdir())
    assert done == [W.nbytes, W.nbytes, 128]
    tensors = {name: value.const_value for name, value in ir.load(path).graph.initializers.items()}
    assert {name for name, tensor in tensors.items() if isinstance(tensor, ir.ExternalTensor)} == {"u", "v"}
    for tensor in (tensors["u"], tensors["v"]):
        assert isinstance(tensor, ir.ExternalTensor)
        assert (tensor.offset or 0) % write.ALIGNMENT == 0
        np.testing.assert_array_equal(tensor.numpy(), W)
    x = normal(2, 64)
    np.testing.assert_array_equal(tiny.evaluate(onnx.load(path), x=x)[0], tiny.evaluate(model(), x=x)[0])


@pytest.mark.usefixtures("external")
def test_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    write.save(model(), tmp_path / "m.onnx")
    assert data_of(tmp_path / "m.onnx").stat().st_size == W.nbytes
    write.save(stored(), tmp_path / "q.onnx")
    assert data_of(tmp_path / "q.onnx").stat().st_size < W.nbytes + W.size + 256


@pytest.mark.usefixtures("external")
def test_external_weights_of_the_input_are_copied_once_each(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write.save(model(), tmp_path / "in" / "m.onnx")
    loaded = ir.load(tmp_path / "in" / "m.onnx")
    write.save(loaded, tmp_path / "copy.onnx")
    assert data_of(tmp_path / "copy.onnx").read_bytes() == data_of(tmp_path / "in" / "m.onnx").read_bytes()


@pytest.mark.usefixtures("external")
def test_external_weights_that_begin_at_one_byte_keep_their_lengths(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(W.tobytes())
    made = tiny.read(tiny.model(TEXT, CONSTANTS | {"u": W[:, :16]}))
    for name, shape in (("u", (64, 16)), ("v", (64, 32))):
        tensor = ir.ExternalTensor(
            "w.data", 0, None, ir.DataType.FLOAT, shape=ir.Shape(shape), name=name, base_dir=tmp_path
        )
        made.graph.initializers[name].const_value = tensor
    write.save(made, tmp_path / "m.onnx")
    u, v = (tiny.array(ir.load(tmp_path / "m.onnx").graph.initializers[name]) for name in "uv")
    np.testing.assert_array_equal(u, W.reshape(-1)[:1024].reshape(64, 16))
    np.testing.assert_array_equal(v, W)


@pytest.mark.parametrize("word", ["int8", "float16"])
@pytest.mark.parametrize("single_file_bytes", [0, 1 << 20])
def test_bytes_are_the_same_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, single_file_bytes: int
) -> None:
    monkeypatch.setattr(write, "SINGLE_FILE_BYTES", single_file_bytes)
    hashes = set()
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        write.save(stored(word), folder / "m.onnx")
        hashes.add(hashlib.sha256(b"".join(f.read_bytes() for f in sorted(folder.iterdir()))).hexdigest())
    assert len(hashes) == 1


@pytest.mark.usefixtures("external")
def test_what_cannot_be_encoded_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = W.copy()
    broken[3, 5] = np.nan
    made = tiny.read(tiny.model(TEXT, CONSTANTS | {"v": broken}))
    StoreWeights(Plan("w8a16", "onnx", {k: Choice(k, "MatMul", Method.STORED, "int8") for k in "no"}))(made)
    output = tmp_path / "m.onnx"
    with (
        pytest.raises(BadModel, match=r"weight 'v' holds nan at \[3, 5\]; .* \(--keep\)"),
        write.staging(output) as folder,
    ):
        write.save(made, folder / output.name)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_said_and_leaves_nothing_behind(tmp_path: Path) -> None:
    output = tmp_path / "m.onnx"

    def write_half() -> None:
        with write.staging(output) as folder:
            (folder / "m.onnx").write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(BadOutput, match=f"no space left on the disk of '{tmp_path}"):
        write_half()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sizes", [(0, 0), (0, 1 << 20), (1 << 20, 0)], ids=["data", "data gone", "data new"])
def test_a_model_and_its_data_change_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    output = tmp_path / "m.onnx"
    for word, size in zip(("int8", "float16"), sizes, strict=True):
        monkeypatch.setattr(write, "SINGLE_FILE_BYTES", size)
        with write.staging(output) as folder:
            write.save(stored(word), folder / "m.onnx")
            write.publish(folder / "m.onnx", output)
        assert {f.name for f in tmp_path.iterdir()} == {"m.onnx", *(f.name for f in write.own_data(output))}
        assert len(write.own_data(output)) == (not size)
        assert (
            tiny.sqnr(W, tiny.evaluate(onnx.load(output), x=np.eye(64, dtype=np.float32))[0] / 2 - CONSTANTS["t"] / 2)
            > 30
        )


@pytest.mark.parametrize(
    ("existing", "output", "force", "words"),
    [
        (["in.onnx", "out.onnx"], "out.onnx", False, "out.onnx' exists; give --force to replace it"),
        (["in.onnx"], "in.onnx", True, "so it cannot be the output"),
        (["in.onnx"], "nowhere/out.onnx", False, "nowhere' does not exist"),
        (["in.onnx"], ".", True, "is a folder; name a file in it"),
    ],
)
def test_what_would_be_lost_is_refused(
    tmp_path: Path, existing: list[str], output: str, force: bool, words: str
) -> None:
    for name in existing:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(BadOutput, match=words):
        write.check_destination(tmp_path / output, [tmp_path / "in.onnx"], force)


def test_with_force_an_output_is_replaced(tmp_path: Path) -> None:
    for name in ("in.onnx", "out.onnx"):
        (tmp_path / name).write_bytes(b"")
    write.check_destination(tmp_path / "out.onnx", [tmp_path / "in.onnx"], True)


def shards_of(path: Path) -> dict[str, tuple[set[str], int]]:
    """By data file, which weights are in it and how long it is."""
    found: dict[str, tuple[set[str], int]] = {}
    for name, value in ir.load(path).graph.initializers.items():
        if isinstance(tensor := value.const_value, ir.ExternalTensor):
            names, _ = found.setdefault(tensor.location, (set(), 0))
            found[tensor.location] = names | {name}, path.with_name(tensor.location).stat().st_size
    return found


LAYERS = {"u": W, "v": normal(64, 32, seed=1), "t": normal(32)}


@pytest.mark.parametrize(
    ("size", "files"),
    [(W.nbytes, [{"u"}, {"v"}]), (2 * W.nbytes, [{"u", "v"}]), (W.nbytes // 2, [{"u"}, {"v"}]), (1 << 20, [])],
)
def test_data_in_files_of_a_bounded_size(size: int, files: list[set[str]], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with write.staging(path) as folder:
        nbytes = write.save(tiny.read(tiny.model(TEXT, LAYERS)), folder / "m.onnx", shard_size=size)
        write.publish(folder / "m.onnx", path)
    assert nbytes == sum(f.stat().st_size for f in tmp_path.iterdir())
    found = shards_of(path)
    assert [names for names, _ in found.values()] == files and {*found} == {f.name for f in write.own_data(path)}
    assert all(length <= max(size, W.nbytes) for _, length in found.values())
    assert all(re.fullmatch(r"m\.onnx\.[0-9a-f]{16}\.data", name) for name in found)
    x = normal(2, 64)
    (wanted,) = tiny.evaluate(tiny.model(TEXT, LAYERS), x=x)
    np.testing.assert_array_equal(tiny.evaluate(onnx.load(path), x=x)[0], wanted)
    assert tiny.sqnr(wanted, onnxruntime.InferenceSession(path).run(None, {"x": x})[0]) > 100


def test_a_file_for_each_layer(tmp_path: Path) -> None:
    """Codes and scales of a weight lie in one file, whatever the order in which the model lists them."""
    text = """g (float[N,64] x) => (float[N,512] y, float[N,32] z) {
        p = DequantizeLinear<axis = 1>(q, s)  [n] y = MatMul(x, p)  [o] z = MatMul(x, r) }"""
    constants = {"q": np.ones((64, 512), np.int8), "r": W, "s": normal(512)}
    write.save(tiny.read(tiny.model(text, constants)), tmp_path / "m.onnx", shard_size="layer")
    assert [names for names, _ in shards_of(tmp_path / "m.onnx").values()] == [{"q", "s"}, {"r"}]


def test_equal_bytes_are_stored_once_in_all_files(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write.save(model(), path, shard_size=W.nbytes)
    assert [names for names, _ in shards_of(path).values()] == [{"u", "v"}]


@pytest.mark.parametrize("size", [0, -5, "every"])
def test_sizes_that_no_file_can_have(size: int | str, tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="a data file cannot have"):
        write.save(model(), tmp_path / "m.onnx", shard_size=size)
