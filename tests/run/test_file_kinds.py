"""What kind of file a model is, is decided once: nothing below onnxq takes it for another one."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from sweeps import swept

import onnxq
from onnxq.bundles.export import export
from onnxq.bundles.verify import verify
from onnxq.cli import main
from onnxq.conversion.to_ort import to_ort
from onnxq.errors import BadModel
from onnxq.files import data_files
from onnxq.model.load import load_model
from onnxq.output.data_writer import LAYER
from onnxq.quality import MAX_DB
from onnxq.runtime.session import Session

pytestmark = pytest.mark.usefixtures("quick")
X = tiny.normal(1, 64)
TEXTS = ("json", "onnxtxt", "textproto")


def made(**fields: str) -> onnx.ModelProto:
    proto = tiny.model("g (float[1, 64] x) => (float[1, 64] y) { [a] y = MatMul(x, w) }", {"w": tiny.normal(64, 64)})
    for name, value in fields.items():
        setattr(proto, name, value)
    return proto


def put(proto: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


def expected() -> np.ndarray:
    return X @ tiny.normal(64, 64)


def opened(path: Path) -> np.ndarray:
    return Session(path).run({"x": X})[0]


def test_a_maker_whose_name_is_that_of_the_other_format(tmp_path: Path) -> None:
    """In memory, onnxruntime takes these bytes for a model of its own format; by the name `.ort` as well."""
    proto = made(producer_name="ORTMaker")
    raw = proto.SerializeToString()
    assert raw[4:8] == b"ORTM"
    with pytest.raises(Exception, match="ORT model"):
        onnxruntime.InferenceSession(raw)
    path = put(proto, tmp_path / "model.onnx")
    np.testing.assert_allclose(opened(path), expected(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(Session(load_model(path)).run({"x": X})[0], expected(), rtol=1e-4, atol=1e-4)
    done = onnxq.quantize(path, tmp_path / "small.onnx", onnxq.Recipe("w4a16", keep_slow=True))
    assert done.check is not None and done.check.sqnr > 15
    with pytest.raises(BadModel, match="onnxruntime's own format"):
        load_model(path.rename(tmp_path / "model.ort"))


def test_protobuf_under_the_name_of_the_other_format(tmp_path: Path) -> None:
    path = put(made(), tmp_path / "model.ort")
    np.testing.assert_allclose(opened(path), expected(), rtol=1e-4, atol=1e-4)


def test_the_other_format_itself(tmp_path: Path) -> None:
    """What `convert --to ort` writes, onnxruntime opens, and nothing else: under any name."""
    path = tmp_path / "m.ort"
    to_ort(put(made(), tmp_path / "model.onnx"), path)
    np.testing.assert_allclose(opened(path), expected(), rtol=1e-4, atol=1e-4)
    for name in ("again.ort", "again.onnx"):
        path = path.rename(tmp_path / name)
        with pytest.raises(BadModel, match=r"give the \.onnx that it was made of"):
            load_model(path)
    (tmp_path / "short.onnx").write_bytes(b"\x08\x08")
    with pytest.raises(BadModel, match="neither nodes nor outputs"):
        load_model(tmp_path / "short.onnx")


@pytest.mark.parametrize("suffix", TEXTS)
def test_models_in_text_run_where_protobuf_does(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{suffix}"
    onnx.save(made(), path)
    np.testing.assert_allclose(opened(path), expected(), rtol=1e-4, atol=1e-4)
    assert onnxq.check(path, path).sqnr == MAX_DB
    export(path, tmp_path / "bundle")
    assert verify(tmp_path / "bundle").agrees == MAX_DB
    to_ort(path, tmp_path / "m.ort")
    np.testing.assert_allclose(opened(tmp_path / "m.ort"), expected(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("suffix", TEXTS)
def test_models_in_text_that_stay_as_they_are_become_protobuf(suffix: str, tmp_path: Path) -> None:
    """The copy is called as protobuf is."""
    path, output = tmp_path / f"model.{suffix}", tmp_path / "out.onnx"
    onnx.save(tiny.model("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }"), path)
    onnxq.quantize(path, output, "w4a16")
    assert [node.op_type for node in onnx.load(output).graph.node] == ["Relu"]


def beside(folder: Path, name: str) -> onnx.ModelProto:
    """A model whose weight lies in a file beside it."""
    proto = made()
    tensor = proto.graph.initializer[0]
    (folder / name).write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=name)
    return proto


def spelled_otherwise(proto: onnx.ModelProto, name: str) -> bytes:
    """Protobuf that says first where the data lie, and then that this is what it says."""
    raw, value = proto.SerializeToString(), b"\x12" + bytes([len(name)]) + name.encode()
    usual = b"\n\x08location" + value
    assert usual in raw
    return raw.replace(usual, value + b"\n\x08location")


WRITING = (
    ("check", "MODEL", "MODEL", "--html"),
    ("report", "MODEL", "-o"),
    ("bench", "MODEL", "--report"),
    ("profile", "MODEL", "-o"),
    ("analyze", "MODEL", "--html"),
)


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (swept if (i + j) % 2 else pytest.param)(words, model, id=f"{words[0]}-{model}")
        for i, words in enumerate(WRITING)
        for j, model in enumerate(["model.onnx", "model.textproto"])
    ],
)
def test_data_that_only_a_parser_finds_are_not_written_over(
    model: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    proto = beside(tmp_path, "w.page")
    before = (tmp_path / "w.page").read_bytes()
    if model.endswith(".textproto"):
        onnx.save(proto, tmp_path / model)
    else:
        (tmp_path / model).write_bytes(spelled_otherwise(proto, "w.page"))
    assert data_files.locations(tmp_path / model) == set()
    done = CliRunner().invoke(main, [model if word == "MODEL" else word for word in words] + ["w.page", "-f"])
    assert done.exit_code == 1 and "'w.page' is read, so it cannot be the output" in done.stderr, done.output
    assert (tmp_path / "w.page").read_bytes() == before


def test_a_bundle_whose_model_reads_what_is_not_listed_by_another_spelling(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    export(put(made(), tmp_path / "model.onnx"), bundle, check=False)
    raw = spelled_otherwise(beside(bundle, "w.data"), "w.data")
    (bundle / "model.onnx").write_bytes(raw)
    table = json.loads((bundle / "manifest.json").read_text())
    table["files"]["model.onnx"] = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (bundle / "manifest.json").write_text(json.dumps(table))
    with pytest.raises(BadModel, match=r"reads 'w\.data', which is not among its files"):
        verify(bundle)


@pytest.mark.parametrize("name", ["copy.json", "copy.textproto", "copy.onnx"])
def test_data_that_a_copy_of_the_model_reads_stay(name: str, tmp_path: Path) -> None:
    """In whatever form somebody keeps it."""
    wide = tiny.model("g (float[1, 64] x) => (float[1, 999] y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 999)})
    source, output = put(wide, tmp_path / "model.onnx"), tmp_path / "out.onnx"
    onnxq.quantize(source, output, "int8", check=False, force=True, shard_size=LAYER)
    (kept,) = data_files.own_data(output)
    proto = onnx.load(output, load_external_data=False)
    if name.endswith(".onnx"):
        (tmp_path / name).write_bytes(spelled_otherwise(proto, kept.name))
    else:
        onnx.save(proto, tmp_path / name)
    onnxq.quantize(source, output, "int4", check=False, force=True, shard_size=LAYER)
    assert kept.is_file() and data_files.own_data(output) != [kept]
    (tmp_path / name).unlink()


def test_models_in_text_with_data_beside_them(tmp_path: Path) -> None:
    """Which onnxruntime finds there too."""
    onnx.save(beside(tmp_path, "w.data"), tmp_path / "model.json")
    np.testing.assert_allclose(opened(tmp_path / "model.json"), expected(), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="a file of Linux")
def test_no_data_are_looked_for_in_what_the_kernel_makes_up(tmp_path: Path) -> None:
    """A folder of models may hold a link to a file that never ends: whatever has the name of a model is searched."""
    says = "\n\x08location\x12\x01w"
    (tmp_path / "plain.onnx").write_text(says)
    assert data_files.locations(tmp_path / "plain.onnx") == {"w"}
    with subprocess.Popen(["sleep", "60"], env={"A": says}) as process:
        try:
            (tmp_path / "link.onnx").symlink_to(f"/proc/{process.pid}/environ")
            while says not in (tmp_path / "link.onnx").read_text():  # it has only just begun
                assert process.poll() is None
                time.sleep(0.001)
            assert data_files.locations(tmp_path / "link.onnx") == set()
        finally:
            process.kill()
