"""The corpus's cases of data as people have them."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import onnx
import tiny
from attack.hostile import CALIBRATE, QUANTIZE, Hostile, changed, file, model, outside, save
from numpy.typing import NDArray

from onnxq.checkpoints import encode_arrays, gguf_file

MEL = "g (float[1, 8, n] input_features) => (y) { h = Conv(input_features, w) y = MatMul(v, h) }"
WAVE = "g (float[1, 64] input_values) => (y) { y = MatMul(input_values, w) }"
IMAGE = "g (float[1,3,8,8] x) => (y) { y = Conv(x, w) }"


def sounds(*preprocess: str, wave: bool = False, **config: object) -> Callable[[Path], list[str]]:
    """A folder of one sound, read as words or a processor's file say."""

    def make(folder: Path) -> list[str]:
        constants = {"w": tiny.normal(64, 64)} if wave else {"w": tiny.normal(16, 8, 1), "v": tiny.normal(32, 16)}
        save(tiny.model(WAVE if wave else MEL, constants), folder)
        (folder / "sounds").mkdir()
        corpora.sound(folder / "sounds" / "a.wav", 0.2)
        if config:
            (folder / "preprocessor_config.json").write_text(json.dumps(config))
        return [*CALIBRATE, "sounds", *(("--preprocess", *preprocess) if preprocess else ())]

    return make


def images(*preprocess: str, kind: str = "PNG", **config: object) -> Callable[[Path], list[str]]:
    """A folder of one image, which is of a `kind` of Pillow's whatever its name says."""

    def make(folder: Path) -> list[str]:
        from PIL import Image

        save(tiny.model(IMAGE, {"w": tiny.normal(16, 3, 3, 3)}), folder)
        (folder / "images").mkdir()
        Image.new("RGB", (12, 9)).save(folder / "images" / "a.png", kind)
        if config:
            (folder / "preprocessor_config.json").write_text(json.dumps(config))
        return [*CALIBRATE, "images", *(("--preprocess", *preprocess) if preprocess else ())]

    return make


def sparse_of(location: str) -> onnx.SparseTensorProto:
    values = outside(location)
    values.dims[:] = [2]
    indices = onnx.helper.make_tensor("i", onnx.TensorProto.INT64, [2], [0, 1])
    return onnx.SparseTensorProto(values=values, indices=indices, dims=[9])


def settings(make: Callable[[Path], object]) -> Callable[[Path], list[str]]:
    """Preprocessing from p.json, which `make` makes."""

    def build(folder: Path) -> list[str]:
        model(folder)
        np.savez(folder / "data.npz", x=tiny.normal(8, 64))
        make(folder / "p.json")
        return [*CALIBRATE, "data.npz", "--preprocess", "p.json"]

    return build


def rows(content: Callable[[Any], dict[str, Any]], images: bool = False) -> Callable[[Path], list[str]]:
    """A Parquet file of the columns that `content` makes of pyarrow."""

    def make(folder: Path) -> list[str]:
        import pyarrow as pa
        from pyarrow import parquet

        constants = {"w": tiny.normal(16, 3, 3, 3) if images else tiny.normal(4, 64)}
        save(tiny.model(IMAGE if images else "g (float[n, 4] x) => (y) { y = MatMul(x, w) }", constants), folder)
        columns = content(pa)
        parquet.write_table(
            pa.table(list(columns.values()), names=[name.rstrip("!") for name in columns]), folder / "t.parquet"
        )
        return [*CALIBRATE, "t.parquet", "--preprocess", "scale=255"]

    return make


def texts(spoil: Callable[[Path], object]) -> Callable[[Path], list[str]]:
    """A text with a tokenizer beside the model; `spoil` gets the folder."""

    def make(folder: Path) -> list[str]:
        save(corpora.encoder(), folder)
        corpora.tokenizer(folder)
        corpora.text(folder / "t.txt", 50)
        spoil(folder)
        return [*CALIBRATE, "t.txt"]

    return make


def elsewhere(path: str) -> Callable[[Any], dict[str, Any]]:
    return lambda pa: {"image": pa.array([{"bytes": None, "path": path}])}


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


def arrays(*names: str, shape: Sequence[int] = (2, 64), apart: int = 1) -> Callable[[Path], None]:
    """A safetensors file of arrays of zeros, all in one place if `apart` is 0; names with a dot are of vectors."""

    def make(folder: Path) -> None:
        size = 4 * math.prod(shape)
        table, begin = {}, 0
        for name in names or ("w",):
            lengths = [size // 4] if "." in name else list(shape)
            table[name] = {"dtype": "F32", "shape": lengths, "data_offsets": [begin, begin + size]}
            begin += size * apart
        header = json.dumps(table).encode()
        (folder / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(max(size, begin)))
        (folder / "out").mkdir()

    return make


def gguf(*shape: int, name: str = "w") -> Callable[[Path], None]:
    """A GGUF file whose one tensor is of another shape than its bytes."""

    def make(folder: Path) -> None:
        encode_arrays.encode_arrays({name: np.zeros((2, 64), np.float32)}, folder / "w.gguf", "q8_0")
        raw = (folder / "w.gguf").read_bytes()
        (folder / "w.gguf").write_bytes(raw.replace(struct.pack("<QQ", 64, 2), struct.pack("<QQ", *shape[::-1]), 1))
        (folder / "out").mkdir()

    return make


def gguf_cut(folder: Path) -> None:
    gguf(2, 64)(folder)
    os.truncate(folder / "w.gguf", 90)


def gguf_of_shared_bytes(folder: Path) -> None:
    two = {name: np.zeros((2, 64), np.float32) for name in ("a", "b")}
    encode_arrays.encode_arrays(two, folder / "w.gguf", "q8_0")
    raw = (folder / "w.gguf").read_bytes()
    second = struct.pack("<IQ", gguf_file.NUMBERS["Q8_0"], 160)  # 2 rows of 2 blocks of 34 bytes, aligned
    assert raw.count(second) == 1
    (folder / "w.gguf").write_bytes(raw.replace(second, second[:4] + bytes(8)))
    (folder / "out").mkdir()


def checkpoint(bias: NDArray) -> Callable[[Path], None]:
    """A packed layer with a bias that is none."""

    def make(folder: Path) -> None:
        packed, scales = np.zeros((8, 32), np.uint8), np.ones((8, 2), np.float16)
        np.savez(folder / "w.npz", **{"a.weight_4bit": packed, "a.scales_4bit": scales, "a.bias": bias})

    return make


ENCODE = ("encode", "w.safetensors", "-w", "int8", "-o", "out/w.npz")
SOUND = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16000}
VIT = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}
WRONG_KIND = "one of its entries is of a wrong kind"

CASES: dict[str, Hostile] = {
    # Files of settings
    "settings that are a pipe": Hostile(settings(os.mkfifo), "is not a file"),
    "settings that are a device": Hostile(settings(lambda p: p.symlink_to("/dev/zero")), "is not a file"),
    "settings that are null": Hostile(settings(lambda p: p.write_text("null")), "not a JSON object but null"),
    "deep settings": Hostile(settings(lambda p: p.write_text(deep(99999))), "is nested too deeply"),
    "settings that are no text": Hostile(settings(lambda p: p.write_bytes(b"\xff")), "not text in UTF-8"),
    "endless rate": Hostile(sounds(wave=True, **SOUND | {"sampling_rate": 1e400}), WRONG_KIND),
    "endless sound": Hostile(sounds("rate=16000 seconds=1e308", wave=True), "seconds=1e+308"),
    "sound of days": Hostile(
        sounds(feature_extractor_type="WhisperFeatureExtractor", sampling_rate=16000, feature_size=8, chunk_length=1e6),
        "seconds=1000000.0",
    ),
    "endless spectrogram": Hostile(sounds("mel=8 rate=16000 window=64 hop=32 frames=999999999999"), "frames=9999"),
    "mean that is no number": Hostile(sounds("rate=16000 mean=nan", wave=True), "mean is a number"),
    "huge cut": Hostile(images("size=8x8 cut=99999x99999"), "would become one of 99999×99999"),
    "cut of half a limit": Hostile(images("size=8x8 cut=16000x16000"), "would become one of"),
    "size beyond all numbers": Hostile(images(f"short={'9' * 400}"), "invalid setting 'short=999"),
    "rate beyond all numbers": Hostile(sounds(f"rate={'9' * 400}", wave=True), "more than the"),
    "colours that are no numbers": Hostile(images("size=8x8 mean=nan"), "invalid setting 'mean=nan'"),
    "endless colours": Hostile(images(**VIT | {"image_mean": [1e400] * 3}), "image_mean is made of"),
    "cut of no sides": Hostile(images(**VIT | {"do_center_crop": True, "crop_size": []}), WRONG_KIND),
    "size of no kind": Hostile(images(**VIT | {"size": None, "image_mean": None}), WRONG_KIND),
    "number beyond all floats in a recipe": Hostile(
        lambda f: (
            model(f),
            (f / "r").write_text("min_sqnr = " + "9" * 400),
            ["plan", "model.onnx", "--recipe", "r"],
        )[-1],
        "should be of type float",
    ),
    "function that takes something": Hostile(
        lambda f: (model(f), [*CALIBRATE, "json:loads"])[-1], "is called without anything, but takes 's'"
    ),
    # Models that an hour of spoiling made
    "sparse numbers that are no whole ones": Hostile(
        lambda f: (
            (f / "w.data").write_bytes(b"\0" * 9),
            changed(lambda p: p.graph.sparse_initializer.append(sparse_of("w.data")))(f),
        )[-1],
        "does not hold what its types",
    ),
    "LSTM of flat weights": Hostile(
        lambda f: save(
            tiny.model(
                "g (float[3, 1, 16] x) => (y) { y = LSTM<hidden_size = 16>(x, w, r) }",
                {"w": tiny.normal(64, 16), "r": tiny.normal(64, 16)},
            ),
            f,
        ),
        "",
        (*QUANTIZE, "--no-check"),
        code=0,
    ),
    "CastLike of one value": Hostile(
        changed(
            lambda p: p.functions[0].node[0].input.pop(),
            "g (float[1, 64] x) => (float[1, 64] y) { h = MatMul(x, w) y = local.f(h) }",
            '<domain: "local", opset_import: ["" : 17]> f (x) => (y) { y = CastLike(x, x) }',
        ),
        "",
        ("analyze", "model.onnx", "-w", "int8"),
    ),
    **{
        f"function that reads {what}, looked at": Hostile(
            changed(
                lambda p, read=read: p.functions[0].node[0].input.__setitem__(0, read),
                "g (float[1, 64] x) => (float[1, 64] y) { h = MatMul(x, w) y = local.f(h) }",
                '<domain: "local", opset_import: ["" : 17]> f (x) => (y) { y = Neg(x) }',
            ),
            says,
            ("inspect", "model.onnx"),
        )
        for what, read, says in (
            ("what nobody makes", "z", "reads 'z', which nothing makes"),
            ("what it makes itself", "y", "the function 'f' has a cycle"),
        )
    },
    "input of an undefined type": Hostile(
        lambda f: (
            changed(lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 0))(f),
            np.savez(f / "data.npz", x=tiny.normal(8, 64)),
            [*CALIBRATE, "data.npz"],
        )[-1],
        "",
    ),
    "limit beyond all numbers": Hostile(
        lambda f: (texts(lambda f: None)(f), [*CALIBRATE, "t.txt", "--limit", "9" * 22])[-1], "", code=0
    ),
    "numbers whose squares are none": Hostile(
        lambda f: save(
            tiny.model("g (double[2, 4] x) => (double[2, 4] y) { y = Mul(x, w) }", {"w": np.full((4,), 1e300)}), f
        ),
        "",
        ("check", "model.onnx", "model.onnx"),
        code=0,
    ),
    # Arrays without a model
    "empty array of endless axes": Hostile(arrays(shape=[0, 1 << 62]), "is damaged", ENCODE),
    "empty tensor of endless axes": Hostile(gguf(0, 1 << 62), "is damaged", ("decode", "w.gguf", "-o", "out/w.npz")),
    "layer without weights": Hostile(
        gguf(0, 64, name="blk.0.attn_q.weight"),
        "of shape [0, 64] has no weights",
        ("import-weights", "w.gguf", "-o", "out/i.onnx", "--no-check"),
    ),
    "table of tensors that is cut short": Hostile(gguf_cut, "is cut short", ("decode", "w.gguf", "-o", "out/w.npz")),
    "weight without axes": Hostile(
        arrays(shape=[]), "is none for GGUF", ("encode", "w.safetensors", "-w", "q8_0", "-o", "out/w.gguf")
    ),
    "name beyond an archive's": Hostile(arrays("n" * 70000), "has 70000 characters", ENCODE),
    "null character in an archive": Hostile(arrays("a\0b"), "cannot be called", ENCODE),
    "array called like a part of another": Hostile(arrays("w", "w.codes"), "two arrays would be 'w.codes'", ENCODE),
    "array called like the table": Hostile(
        arrays("w", "onnxq.json"), "an array cannot be called 'onnxq.json' in a file", ENCODE
    ),
    "input as output, by force": Hostile(
        arrays("w"), "is read, so it cannot be", ("encode", "w.safetensors", "-w", "int8", "-o", "w.safetensors", "-f")
    ),
    "tensors that share bytes": Hostile(arrays("a", "b", apart=0), "tensors 'a' and 'b' share bytes", ENCODE),
    "tensors of GGUF that share bytes": Hostile(
        gguf_of_shared_bytes, "tensors 'a' and 'b' share bytes", ("decode", "w.gguf", "-o", "out/w.npz")
    ),
    **{
        f"bias {what}": Hostile(checkpoint(np.array([bias] * 8)), says, ("import-weights", "w.npz", "-o", "out.onnx"))
        for what, bias, says in (
            ("of letters", "x", "is of type <U1, not of real numbers"),
            ("of imaginary numbers", 1j, "is of type complex128, not of real numbers"),
            ("that is no number", float("nan"), "not finite, or too large for float32"),
            ("beyond all numbers", 1e300, "not finite, or too large for float32"),
        )
    },
    # Images and tables
    "PostScript in an image": Hostile(images("size=8x8", kind="EPS"), "is not a readable image"),
    "table that names a file elsewhere": Hostile(rows(elsewhere("/etc/passwd"), images=True), "outside of the table's"),
    "table that names a way out": Hostile(
        rows(elsewhere("../" * 9 + "etc/passwd"), images=True), "outside of the table's"
    ),
    "table with a null character": Hostile(rows(elsewhere("a\0b"), images=True), "which is not there"),
    "columns of one name": Hostile(rows(lambda pa: {"x": pa.array([1.0]), "x!": pa.array([1.0])}), "has 2 columns 'x'"),
    "column of tables": Hostile(
        rows(lambda pa: {"x": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}), "the model expects [n, 4]"
    ),
    "column of times": Hostile(rows(lambda pa: {"x": pa.array([1], pa.timestamp("ns"))}), "is of type timestamp[ns]"),
    "column of objects": Hostile(rows(lambda pa: {"x": pa.array([{"a": 1}])}), "is of type struct<a: int64>"),
    "column of no letters": Hostile(
        lambda f: (
            rows(lambda pa: {"abcdef": pa.array([1.0])})(f),
            (f / "t.parquet").write_bytes((f / "t.parquet").read_bytes().replace(b"abcdef", b"abc\xabef")),
            [*CALIBRATE, "t.parquet"],
        )[-1],
        "is not a readable table",
    ),
    # Texts
    "start beyond all numbers": Hostile(
        texts(
            lambda f: (
                save(corpora.decoder(), f),
                (f / "config.json").write_text('{"decoder_start_token_id": ' + "9" * 99 + "}"),
            )
        ),
        "",
        code=0,
    ),
    "tokenizer that fills up with half a character": Hostile(
        texts(lambda f: (f / "tokenizer_config.json").write_text('{"pad_token": "\\ud800"}')), "", code=0
    ),
    "line with a number of digits without end": Hostile(
        file("t.jsonl", f'{{"x": {"9" * 9999}}}', *CALIBRATE, "t.jsonl"), "line 1 is not JSON: a number has thousands"
    ),
    "image of which next to nothing is left": Hostile(
        images(crop_pct=1e-300, image_processor_type="ConvNextImageProcessor", size={"shortest_edge": 8}),
        "crop_pct is a share",
    ),
    "tokenizer that is null": Hostile(texts(lambda f: (f / "tokenizer.json").write_text("null")), "is not a tokenizer"),
    "line that is null": Hostile(
        lambda f: (
            texts(lambda f: (f / "t.jsonl").write_text('{"text": "quick"}\nnull\n'))(f),
            [*CALIBRATE, "t.jsonl"],
        )[-1],
        "line 2 is null",
    ),
}
