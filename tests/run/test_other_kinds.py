"""Files of other programs in the place of a model or a checkpoint: what they are is told by what they begin with."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner

from onnxq.checkpoints.tensors import open_checkpoint
from onnxq.cli import main
from onnxq.errors import BadData


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name in names:
            file.writestr(name, b"\x80\x02}q\x00.")
    return made.getvalue()


def safetensors(length: int = 64) -> bytes:
    """One tensor, behind a header of so many bytes."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return length.to_bytes(8, "little") + header.ljust(length) + np.ones(2, np.float32).tobytes()


#: torch.save before 1.6: a pickle of a magic number.
LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e") + b"\x80\x02M\xe9\x03."
KINDS = {
    "torch": (archive("m/data.pkl", "m/data/0", "m/version"), "is a file of torch: .* by torch.onnx.export"),
    "exported by torch": (archive("m/archive_format", "m/models/model.json"), "is a file of torch"),
    "old torch": (LEGACY, "is a file of torch"),
    "keras": (archive("config.json", "model.weights.h5"), "as Keras writes them"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "is an HDF5 file, as Keras writes them"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(64), "is a model of TensorFlow Lite"),
    "gguf": (b"GGUF\3\0\0\0" + bytes(64), "give it to 'onnxq import-weights'"),
    "safetensors": (safetensors(), "weights without a graph"),
    "safetensors that begin like a pickle": (safetensors(0x280), "weights without a graph"),
}


@pytest.mark.parametrize("name", ["model.onnx", "model.bin"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_is_told_from_a_damaged_model(kind: str, name: str, tmp_path: Path) -> None:
    content, words = KINDS[kind]
    (tmp_path / name).write_bytes(content)
    done = CliRunner().invoke(main, ["inspect", str(tmp_path / name)])
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert "import-weights" in done.stderr or "export the model to ONNX first" in done.stderr
    assert re.search(words, done.stderr), done.stderr


PACKED = {
    "zip": (archive("net/model.onnx", "net/vocab.txt"), "is a zip archive, which holds 'model.onnx': unpack it first"),
    "zip that is cut short": (archive("a")[:40], "is an archive, as zip and numpy make them, that is damaged or"),
    "gzip": (
        gzip.compress(tiny.model("g (float[2] x) => (float[2] y) { y = Relu(x) }").SerializeToString()),
        "by gzip",
    ),
    "xz": (lzma.compress(bytes(99)), "is compressed by xz"),
    "bzip2": (bz2.compress(bytes(99)), "is compressed by bzip2"),
    "tar": (b"model.onnx".ljust(257, b"\0") + b"ustar\x0000" + bytes(900), "is a tar archive"),
    "page": (b"<!DOCTYPE html><html><head><title>Not found</title></head></html>", "is a web page"),
}
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


@pytest.mark.parametrize("kind", PACKED)
def test_what_is_to_be_unpacked_first_is_told(kind: str, tmp_path: Path) -> None:
    content, words = PACKED[kind]
    model = tiny.save(tiny.model("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path, "good.onnx")
    (tmp_path / "model.onnx").write_bytes(content)
    (tmp_path / "w.safetensors").write_bytes(content)
    done = CliRunner().invoke(main, ["inspect", str(tmp_path / "model.onnx")])
    assert done.exit_code == 1 and done.stderr.count("\n") == 1 and words in done.stderr, done.stderr
    if kind != "zip":  # which may be an npz
        done = CliRunner().invoke(main, ["import-weights", str(model), str(tmp_path / "w.safetensors")])
        assert done.exit_code == 1 and words in done.stderr, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "inspect p.onnx",
        "quantize good.onnx --data p.npz",
        "quantize good.onnx --data p.jsonl --tokenizer .",
        "quantize good.onnx --data p.npy",
        "quantize good.onnx --recipe p.toml",
        "import-weights good.onnx p.safetensors",
        "import-weights good.onnx p.gguf",
        "quantize beside.onnx",
        "quantize good.onnx --data texts.jsonl --tokenizer tokenizer.json",
    ],
)
def test_a_pointer_of_git_lfs_is_told(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of a model, of data beside it, of samples, of a tokenizer, of a checkpoint."""
    monkeypatch.chdir(tmp_path)
    text = "g (int64[N, 4] input_ids) => (float[N, 4, 8] y) { y = Gather(w, input_ids) }"
    made = tiny.model(text, {"w": tiny.normal(64, 8)})
    tiny.save(made, tmp_path, "good.onnx")
    onnx.save(made, "beside.onnx", save_as_external_data=True, location="p.data", size_threshold=0)
    Path("texts.jsonl").write_text('{"text": "a"}\n')
    for name in ("onnx", "npz", "npy", "jsonl", "toml", "safetensors", "gguf", "data"):
        Path(f"p.{name}").write_bytes(POINTER)
    Path("tokenizer.json").write_bytes(POINTER)
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code == 1 and "is a pointer of git-lfs" in done.stderr, done.output


@pytest.mark.parametrize(("name", "whose"), [("saved.pb", "TensorFlow"), ("net.mlmodel", "Core ML")])
def test_other_files_of_protobuf_are_told_by_their_names(name: str, whose: str, tmp_path: Path) -> None:
    for content in (b"\x0a\x05\x0a\x03abc", b"\x08\x04\x12\x03abc", b"\x08\x01\x12\x09\x0a\x07\xff\xfe abc"):
        (tmp_path / name).write_bytes(content)
        done = CliRunner().invoke(main, ["inspect", str(tmp_path / name)])
        assert done.exit_code == 1 and f"by its name one of {whose}: export the model" in done.stderr


def test_a_model_that_is_cut_short_is_called_that(tmp_path: Path) -> None:
    path = tiny.save(tiny.model("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    assert "or is cut short" in CliRunner().invoke(main, ["inspect", str(path)]).stderr


@pytest.mark.parametrize("kind", ["torch", "old torch"])
@pytest.mark.parametrize("command", ["encode", "import-weights"])
def test_a_checkpoint_of_torch_is_not_unpickled(kind: str, command: str, tmp_path: Path) -> None:
    (tmp_path / "real.pt").write_bytes(KINDS[kind][0])
    model = tiny.save(tiny.model("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path)
    words = [tmp_path / "real.pt", "-w", "nf4", "-o", tmp_path / "o.npz"]
    if command == "import-weights":
        words = [model, tmp_path / "real.pt", "-o", tmp_path / "o.onnx"]
    done = CliRunner().invoke(main, [command, *map(str, words)])
    assert done.exit_code == 1 and "damaged" not in done.stderr
    assert "a pickle that may run code" in done.stderr
    words = " ".join(done.stderr.split())  # what shares memory is refused by that as it is
    assert "w = torch.load('real.pt', weights_only=True), w = w['model'] or the like" in words
    assert "save_file({name: x.contiguous().clone() for name, x in w.items()}, 'real.safetensors')" in words


def test_a_header_that_is_as_long_as_a_pickle_begins_is_read(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(safetensors(0x280))
    assert list(open_checkpoint(tmp_path / "w.safetensors")["w"]) == [1, 1]
    with pytest.raises(BadData, match="no such file"):
        open_checkpoint(tmp_path / "gone.safetensors")
