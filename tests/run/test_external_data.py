"""Weights beside the model: in one file or several, in subfolders, of bodies and of Constant nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny
from click.testing import CliRunner

import onnxq
from onnxq.cli import main
from onnxq.files.data_files import own_data
from onnxq.model import graph
from onnxq.model.load import external_tensors, load_model
from onnxq.output import messages
from onnxq.passes.prepare import prepare
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")

CONVS = """g (float[N, 16, H, W] x, bool flag) => (float[N, 16, H, W] y) {
  a = Conv<pads = [1, 1, 1, 1]>(x, w)  ra = Relu(a)
  b = Conv<pads = [1, 1, 1, 1]>(ra, v)  s = Add(b, ra)  rs = Relu(s)
  y = If(flag) <
    then_branch = t () => (float[N, 16, H, W] ty) { ty = Conv<pads = [1, 1, 1, 1]>(rs, v) },
    else_branch = e () => (float[N, 16, H, W] ey) { eu = Constant<value = float[1] {0.0}>()
      ey = Conv<pads = [1, 1, 1, 1]>(rs, eu) }> }"""
LAYOUTS = {
    "one file": lambda name: "model.onnx.data",
    "a file each": lambda name: f"{name}.bin",
    "subfolders": lambda name: f"part_{name}/weights.bin",
    "a dot in front": lambda name: f"./data/../{name}.bin",
}


def tensors(body: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from body.initializer
    for node in body.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            yield from tensors(attribute.g)


def save(folder: Path, layout: str) -> Path:
    """The model with its convolutions' weights where the layout says: `v` is that of a body too, `eu` a Constant's."""
    arrays = {name: tiny.normal(16, 16, 3, 3, seed=i) for i, name in enumerate("wvu")}
    proto = tiny.model(CONVS, {name: arrays[name] for name in "wv"})
    (branch,) = (a.g for node in proto.graph.node for a in node.attribute if a.name == "else_branch")
    branch.node[0].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(arrays["u"], "u"))
    for tensor in tensors(proto.graph):
        place = folder / LAYOUTS[layout](tensor.name)
        (folder / "data").mkdir(exist_ok=True)
        place.parent.mkdir(exist_ok=True)
        with open(place, "ab") as file:
            entries = {"location": LAYOUTS[layout](tensor.name), "offset": file.tell(), "length": len(tensor.raw_data)}
            file.write(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
    return tiny.save(proto, folder)


def samples(count: int, size: int, flag: bool) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(size)
    return [
        {"x": rng.standard_normal((1, 16, size, size)).astype(np.float32), "flag": np.array(flag or i % 2 == 0)}
        for i in range(count)
    ]


@pytest.mark.each_value
@pytest.mark.parametrize("scheme", ["w8a8", "w4a16", "fp16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_convolutions_with_weights_beside_the_model(
    layout: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    path = save(tmp_path / "model", layout)
    monkeypatch.chdir(tmp_path)  # the model is named by a relative path from elsewhere
    before = {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}
    result = onnxq.quantize("model/model.onnx", "out.onnx", scheme, data=samples(8, 12, False), threads=1)
    assert {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()} == before
    assert result.bytes_before == sum(map(len, before.values()))
    assert result.bytes_after < 0.6 * result.bytes_before
    in_float, quantized = Session(path), Session(tmp_path / "out.onnx")
    for flag in (True, False):
        for feed in samples(2, 20, flag):
            assert tiny.sqnr(in_float.run(feed)[0], quantized.run(feed)[0]) > (18 if scheme == "w4a16" else 20)


def links(folder: Path, kind: str, *, in_body: bool = False) -> Path:
    """A model and data that are links into a store, as in a hub's cache of downloads; or have a second name there.

    Args:
        in_body: some are of a body, and no constants of the graph.
    """
    store, snapshot = folder / "blobs", folder / "snapshots" / "rev"
    store.mkdir()
    snapshot.mkdir(parents=True)
    text = """g (float[n, 64] x, bool flag) => (float[n, 64] y) { h = MatMul(x, w)  z = Relu(h)  k = MatMul(z, again)
        y = If(flag) <then_branch = t () => (float[n, 64] a) { a = MatMul(k, u) },
            else_branch = e () => (float[n, 64] b) { b = MatMul(k, w) }> }"""
    constants = {name: tiny.normal(64, 64, seed=name == "u") for name in ("w", "again", "u")}
    proto = tiny.model(text, constants, opset=11)  # which is raised on the way, through protobuf
    (then,) = (a.g for node in proto.graph.node for a in node.attribute if a.name == "then_branch")
    if in_body:
        then.initializer.append(proto.graph.initializer.pop())
    onnx.save(proto, snapshot / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    for number, file in enumerate(sorted(snapshot.iterdir())):
        blob = store / f"{number:04x}"
        if kind == "links":
            file.rename(blob)
            file.symlink_to(Path("..", "..", "blobs", blob.name))
        else:
            blob.hardlink_to(file)
    return snapshot / "model.onnx"


@pytest.mark.parametrize(("kind", "in_body"), [("links", False), ("links", True), ("second names", False)])
def test_data_of_a_store(kind: str, in_body: bool, tmp_path: Path) -> None:
    path = links(tmp_path, kind, in_body=in_body)
    data = [{"x": tiny.normal(4, 64, seed=seed), "flag": np.array(seed % 2 == 0)} for seed in range(8)]
    result = onnxq.quantize(path, tmp_path / "out.onnx", "w8a8", data=data)
    assert result.check is not None and result.check.sqnr > 20


@pytest.mark.parametrize("kind", ["links", "second names"])
def test_every_command_reads_data_of_a_store(kind: str, tmp_path: Path) -> None:
    path, mended = links(tmp_path, kind), tmp_path / "mended.onnx"
    for words in (
        ("doctor", path),
        ("doctor", path, "--fix", "-o", mended),
        ("doctor", path.parent),
        ("doctor", path.parent, "--fix", "-o", tmp_path / "mended"),
        ("check", path, mended),
        ("analyze", path, "-w", "int8"),
        ("profile", path, "-o", tmp_path / "times.json"),
    ):
        done = CliRunner().invoke(main, [str(word) for word in words])
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("kind", ["links", "second names"])
def test_a_worker_reads_data_of_a_store(kind: str, tmp_path: Path) -> None:
    for tensor in external_tensors(load_model(links(tmp_path, kind))):
        assert np.array_equal(messages.external(*messages.place_of(tensor)).numpy(), tensor.numpy())


def test_a_sound_model_of_a_store_whose_data_a_mended_one_shares(tmp_path: Path) -> None:
    path = links(tmp_path, "links")
    sound = onnx.load(path, load_external_data=False)
    sound.graph.node[2].input[1] = "w"
    del sound.graph.initializer[[tensor.name for tensor in sound.graph.initializer].index("again")]
    onnx.save(sound, tmp_path / "blobs" / "sound")
    path.with_name("sound.onnx").symlink_to(tmp_path / "blobs" / "sound")
    done = CliRunner().invoke(main, ["doctor", str(path.parent), "--fix", "-o", str(tmp_path / "mended")])
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in (tmp_path / "mended").iterdir()) == [
        *("model.onnx", "onnxq.json", "sound.onnx", "w.bin")
    ]
    onnx.load(tmp_path / "mended" / "sound.onnx")


def test_what_leads_out_of_the_store_of_a_model_is_refused(tmp_path: Path) -> None:
    path = links(tmp_path, "links")
    data = path.with_name("w.bin")
    data.resolve().rename(tmp_path / "elsewhere")
    data.unlink()
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(onnxq.errors.BadModel, match="outside the model's folder"):
        load_model(path)


def test_a_model_in_memory_whose_weights_lie_in_several_folders(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    path = save(tmp_path / "one", "a file each")
    model = load_model(path)
    (tmp_path / "two").mkdir()
    moved = model.graph.initializers["w"]
    assert isinstance(moved.const_value, ir.ExternalTensor)
    (tmp_path / "one" / "w.bin").rename(tmp_path / "two" / "w.bin")
    moved.const_value.base_dir = tmp_path / "two"
    prepare(model)  # weights of Constant nodes become initializers
    (feed,) = samples(1, 8, True)
    (got,) = Session(model).run(feed)
    (tmp_path / "two" / "w.bin").rename(tmp_path / "one" / "w.bin")
    assert np.array_equal(got, Session(path).run(feed)[0])


@pytest.mark.parametrize("size", ["5kB", "layer"])
def test_several_files_that_onnxruntime_reads(size: str, tmp_path: Path) -> None:
    """Written by `quantize`, and again by `convert` and `dequantize`, which read what that one wrote."""
    text = """g (float[n, 64] x) => (float[n, 48] y) {
        [a] a = MatMul(x, u)  r = Relu(a)  [b] b = MatMul(r, v)  s = Relu(b)  [c] y = MatMul(s, w) }"""
    shapes = {"u": (64, 128), "v": (128, 64), "w": (64, 48)}
    constants = {name: tiny.normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    model = tiny.save(tiny.model(text, constants), tmp_path)
    x = tiny.normal(4, 64, seed=9)

    def made(command: str, source: Path, output: str, *more: str) -> Path:
        words = [command, str(source), "-o", str(tmp_path / output), "--shard-size", size, "--no-check", *more]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        return tmp_path / output

    small = made("quantize", model, "a.onnx", "-s", "w4a16", "--keep-slow", "--prefer", "size")
    packed = made("convert", small, "b.onnx", "--to", "onnx", "--accuracy-level", "0")
    floats = made("dequantize", packed, "c.onnx")
    (wanted,) = Session(floats, optimize=False).run({"x": x})
    for path in (small, packed, floats):
        onnx.checker.check_model(path)
        assert len(own_data(path)) == 3 if size == "layer" or path == floats else len(own_data(path)) > 1
        assert all(file.stat().st_size <= 5000 or path == floats or size == "layer" for file in own_data(path))
        # MatMulNBits rounds what it multiplies to 8 bits.
        assert tiny.sqnr(wanted, Session(path, optimize=False).run({"x": x})[0]) > (30 if path == small else 100)
    done = CliRunner().invoke(main, ["quantize", str(model), "--shard-size", "0MB"])
    assert done.exit_code == 1 and "a data file cannot have 0 bytes" in done.stderr
    done = CliRunner().invoke(main, ["quantize", str(model), "--shard-size", "many"])
    assert done.exit_code == 1 and "invalid size 'many'; examples: 2GB, layer" in done.stderr


def test_what_is_made_of_a_weight_leaves_its_file_unmapped(tmp_path: Path) -> None:
    """Else every page of a float16 model, whose weights are widened when they are read, counts as our memory."""
    (tmp_path / "d").write_bytes(np.arange(64, dtype=np.float16).tobytes())
    tensor = ir.ExternalTensor("d", 0, 128, ir.DataType.FLOAT16, shape=ir.Shape([8, 8]), name="w", base_dir=tmp_path)
    wide = graph.lazily(tensor, lambda w: w, dtype=ir.DataType.FLOAT)
    for _ in range(2):
        assert np.array_equal(wide.numpy(), np.arange(64, dtype=np.float32).reshape(8, 8))
        assert tensor.raw is None
    same = graph.lazily(tensor, lambda w: w)  # which looks at the file itself
    assert np.array_equal(same.numpy(), tensor.numpy())
