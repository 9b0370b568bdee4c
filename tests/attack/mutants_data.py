"""Spoiled data as people have them, and spoiled folders of models: kinds of cases for `mutants.py`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import corpora
import folder_models
import numpy as np
import onnx
import tiny
from attack import mutate
from google.protobuf.message import DecodeError


class Case(Protocol):
    """What of a `Mutant` matters here."""

    @property
    def command(self) -> int: ...
    @property
    def seeds(self) -> tuple[int, ...]: ...
    @property
    def r(self) -> random.Random: ...


CALIBRATE = ["calibrate", "model.onnx", "-s", "w8a8", "-o", "out.ranges", "--calibration", "minmax", "--limit", "4"]
#: Places that a file may name instead of its own.
PLACES = ("/etc/passwd", "../x", "link", "pipe", "", ".", "a\0b", "n" * 5000, "/dev/zero", "sub/../a.png", "\ud800")


def spoil(case: Case, path: Path) -> None:
    """The bytes of a file; of JSON its values, mostly."""
    for seed in case.seeds:
        r = random.Random(seed)
        raw = path.read_bytes()
        if path.suffix == ".json" and r.random() < 0.8:
            try:
                value = mutate.spoil_json(json.loads(raw), r)
            except ValueError:
                continue
            path.write_text(json.dumps(value))
        else:
            path.write_bytes(r.choice([mutate.spoil_bytes, mutate.spoil_numbers])(raw, r))


def _traps(folder: Path) -> None:
    (folder / "link").symlink_to(mutate.elsewhere(folder))
    os.mkfifo(folder / "pipe")


def texts(case: Case, folder: Path) -> list[str]:
    """A tokenizer, its settings, the model's, or the text itself."""
    tiny.save(corpora.decoder() if case.command % 2 else corpora.encoder(), folder)
    beside = bool(case.command // 2 % 2)
    place = folder if beside else folder / "tok"
    corpora.tokenizer(place, special=True, bos_token={"content": "[CLS]"}, model_max_length=64)
    settings = {"max_position_embeddings": 128, "decoder_start_token_id": 2, "model_type": "gpt2"}
    (folder / "config.json").write_text(json.dumps(settings))
    corpora.text(folder / "t.txt", 200)
    files = [place / "tokenizer.json"] * 3 + [place / "tokenizer_config.json", folder / "config.json", folder / "t.txt"]
    spoil(case, case.r.choice(files))
    return [*CALIBRATE, "--data", "t.txt", *([] if beside else ["--tokenizer", "tok"])]


def lines(case: Case, folder: Path) -> list[str]:
    """Lines of JSON with arrays, or with a text."""
    is_text = bool(case.command % 2)
    made = corpora.encoder() if is_text else tiny.model("g (float[n, 4] x) => (y) { y = MatMul(x, w) }", _W)
    tiny.save(made, folder)
    if is_text:
        corpora.tokenizer(folder)
    values: list[Any] = [{"text": "the quick brown fox"} if is_text else {"x": [[1.0, 2, 3, 4]]} for _ in range(6)]
    raw = "\n".join(json.dumps(value) for value in values)
    for seed in case.seeds:
        r = random.Random(seed)
        if r.random() < 0.6:
            values[r.randrange(6)] = mutate.spoil_json(r.choice(values), r)
            raw = "\n".join(json.dumps(value) for value in values)
    (folder / "data.jsonl").write_text(raw)
    if case.command % 5 == 0:
        spoil(case, folder / "data.jsonl")
    return [*CALIBRATE, "--data", "data.jsonl"]


_W = {"w": tiny.normal(4, 64)}
SOUND_WORDS = ("mel=8 rate=16000 window=64 hop=32 fft=64", "mel=8 rate=16000 window=60 hop=32 style=kaldi", "rate=8000")
PROCESSORS: tuple[dict[str, Any], ...] = (
    {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 8, "n_fft": 64, "hop_length": 32}
    | {"chunk_length": 1, "sampling_rate": 16000},
    {"feature_extractor_type": "ASTFeatureExtractor", "num_mel_bins": 8, "max_length": 20, "mean": 0.5, "std": 0.5},
    {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16000, "do_normalize": True},
)


def sound(case: Case, folder: Path) -> list[str]:
    """A sound, or how it is read."""
    import soundfile

    wants_wave = case.command % 3 == 2
    if wants_wave:
        made = tiny.model("g (float[1, n] input_values) => (y) { y = MatMul(input_values, w) }", {"w": _W["w"][:1]})
    else:
        made = tiny.model("g (float[1, 8, n] input_features) => (y) { y = Conv(input_features, w) }", _CONV)
    tiny.save(made, folder)
    (folder / "sounds").mkdir()
    kind = ("wav", "flac", "ogg", "aiff", "mp3")[case.command // 3 % 5]
    wave = np.sin(np.arange(3000) * 0.1).astype(np.float32)
    soundfile.write(folder / "sounds" / f"a.{kind}", wave, 16000)
    words = [*CALIBRATE, "--data", "sounds"]
    if case.command % 2:
        spoil(case, folder / "sounds" / f"a.{kind}")
        return [*words, "--preprocess", SOUND_WORDS[case.command % 3]]
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[case.command % 3]))
    spoil(case, folder / "preprocessor_config.json")
    return words


_CONV = {"w": tiny.normal(4, 8, 1)}
PICTURES: tuple[dict[str, Any], ...] = (
    {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}, "image_mean": [0.5, 0.5, 0.5]}
    | {"image_std": [0.5, 0.5, 0.5], "rescale_factor": 0.004, "resample": 2, "do_normalize": True},
    {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 8},
        "crop_size": 8,
        "do_center_crop": True,
    },
    {"image_processor_type": "ConvNextFeatureExtractor", "size": {"shortest_edge": 8}, "crop_pct": 0.875},
    {"image_processor_type": "DetrImageProcessor", "size": {"shortest_edge": 8, "longest_edge": 20}, "do_pad": True},
)


def processor(case: Case, folder: Path) -> list[str]:
    """How images are read, from a file."""
    from PIL import Image

    tiny.save(tiny.model("g (float[1,3,h,v] x) => (y) { y = Conv(x, w) }", {"w": tiny.normal(16, 3, 3, 3)}), folder)
    (folder / "images").mkdir()
    Image.new("RGB", (12, 9), (200, 30, 4)).save(folder / "images" / "a.png")
    (folder / "preprocessor_config.json").write_text(json.dumps(PICTURES[case.command % 4]))
    spoil(case, folder / "preprocessor_config.json")
    return [*CALIBRATE, "--data", "images"]


def table(case: Case, folder: Path) -> list[str]:
    """A table of numbers, of arrays, of texts or of images, with columns of any type and names that come twice."""
    import pyarrow
    from pyarrow import csv, feather, ipc, parquet

    r = case.r
    content = ("numbers", "arrays", "texts", "images")[case.command % 4]
    kind = ("csv", "parquet", "arrow", "feather")[case.command // 4 % 4]
    if content == "images":
        made = tiny.model("g (float[1,3,8,8] x) => (y) { y = Conv(x, w) }", {"w": tiny.normal(16, 3, 3, 3)})
    elif content == "texts":
        made = corpora.encoder()
        corpora.tokenizer(folder)
    else:
        made = tiny.model("g (float[n, 4] x) => (y) { y = MatMul(x, w) }", _W)
    tiny.save(made, folder)
    _traps(folder)
    columns = _columns(content)
    if case.command // 16 % 2:
        for seed in case.seeds:
            _spoil_columns(columns, random.Random(seed), pyarrow)
    made_table = pyarrow.table([column for _, column in columns], names=[name for name, _ in columns])
    path = folder / f"data.{kind}"
    try:
        if kind == "csv":
            csv.write_csv(made_table, path)
        elif kind == "parquet":
            parquet.write_table(made_table, path, compression=r.choice(["none", "snappy", "zstd"]))
        elif kind == "feather":
            feather.write_feather(made_table, path, compression=r.choice(["uncompressed", "lz4"]))
        else:
            with ipc.new_stream(path, made_table.schema) as stream:
                stream.write_table(made_table)
    except (pyarrow.ArrowException, NotImplementedError):  # of types that the kind of file has not
        path.write_bytes(b"x\n1\n")
    if not case.command // 16 % 2:
        spoil(case, path)
    return [*CALIBRATE, "--data", path.name, "--preprocess", "size=8x8"]


def _columns(content: str) -> list[tuple[str, Any]]:
    import pyarrow

    if content == "numbers":
        return [(f"c{i}", pyarrow.array(np.arange(6, dtype=np.float32) + i)) for i in range(4)]
    if content == "arrays":
        return [("x", pyarrow.array([[1.0, 2, 3, 4]] * 6))]
    if content == "texts":
        return [("text", pyarrow.array(["the quick brown fox"] * 6))]
    png = io.BytesIO()
    from PIL import Image

    Image.new("RGB", (12, 9), (200, 30, 4)).save(png, "png")
    return [("image", pyarrow.array([{"bytes": png.getvalue(), "path": "a.png"}] * 6))]


def _spoil_columns(columns: list[tuple[str, Any]], r: random.Random, pyarrow: Any) -> None:
    at = r.randrange(len(columns))
    name, column = columns[at]
    how = r.randrange(4)
    if how == 0:
        columns.append((r.choice([name, *mutate.TEXTS]), column))
    elif how == 1:
        columns[at] = (r.choice(mutate.TEXTS), column)
    elif name == "image":
        columns[at] = (name, pyarrow.array([{"bytes": None, "path": r.choice(PLACES[:-1])}] * 6))
    else:
        columns[at] = (name, _odd_column(r, pyarrow))


def _odd_column(r: random.Random, pa: Any) -> Any:
    """Six cells of some type."""
    days = pa.array([1, None, 3, 4, 5, 1 << 60], pa.int64())
    made: list[Callable[[], Any]] = [
        lambda: pa.nulls(6),
        lambda: pa.array([None] * 6, pa.float32()),
        lambda: days.cast(pa.timestamp("ns")),
        lambda: days.cast(pa.duration("us")),
        lambda: pa.array([b"\xff\0"] * 6),
        lambda: pa.array(["\0x", "", None, "1", "é", "n" * 9999]),
        lambda: pa.array([{"a": 1}] * 6),
        lambda: pa.array([[("k", 1)]] * 6, pa.map_(pa.string(), pa.int64())),
        lambda: pa.array(["a", "b", None] * 2).dictionary_encode(),
        lambda: pa.array([[1.0] * 4, None] * 3),
        lambda: pa.array([[1.0] * 4, [1.0]] * 3),
        lambda: pa.array([[[1.0, 2], [3.0]]] * 6),
        lambda: pa.array([[[1.0, None, 2, 3]]] * 6),
        lambda: pa.array([[["a"] * 4]] * 6),
        lambda: pa.array([[1, 2, 3, 4]] * 6, pa.list_(pa.int64(), 4)),
        lambda: pa.array([[]] * 6, pa.list_(pa.float32())),
        lambda: pa.array([True, None] * 3),
        lambda: pa.array([float("nan"), float("inf"), -0.0, 1e308, 1, None]),
        lambda: pa.array([10**30] * 6, pa.decimal128(38)),
        lambda: pa.array([1 << 63] * 6, pa.uint64()),
        lambda: pa.array([np.float16(1)] * 6),
        lambda: pa.RunEndEncodedArray.from_arrays([6], [1.0]),
        lambda: pa.UnionArray.from_sparse(pa.array([0] * 6, pa.int8()), [pa.array(range(6)), pa.array(["a"] * 6)]),
    ]
    return r.choice(made)()


GENAI = {
    "model": {
        "decoder": {"filename": "a.onnx", "session_options": {"log_id": "x", "provider_options": []}},
        "vision": {"filename": "sub/b.onnx"},
    }
}


def models(case: Case, folder: Path) -> list[str]:
    """A folder of models: its configuration, one of its models or what lies beside them; some lead elsewhere."""
    place = folder / "in"
    (place / "sub").mkdir(parents=True)
    r = case.r
    onnx.save(folder_models.encoder(), place / "a.onnx")
    onnx.save(
        folder_models.decoder(),
        place / "sub" / "b.onnx",
        save_as_external_data=True,
        location="b.data",
        size_threshold=0,
    )
    configs = {"genai_config.json": GENAI, "model_index.json": {"_class_name": "X", "unet": ["a", "b"]}}
    name = (*configs, "config.json")[case.command % 3]
    content = configs.get(name, {"model_type": "x", "transformers.js_config": {"use_external_data_format": {}}})
    (place / name).write_text(json.dumps(content))
    (place / "tokenizer.json").write_text("{}")
    target = "onnxq" if case.command // 3 % 2 else "ort-cpu"
    words = ["quantize", "in", "-s", "w8a16", "-o", "out", "--no-check", "-t", target]
    if name == "config.json" and case.command // 3 % 2:
        words += ["--layout", "transformers.js"]
    for seed in case.seeds:
        # What an earlier mutation left may be nothing that this one can read.
        with contextlib.suppress(OSError, ValueError, IndexError, TypeError, DecodeError):
            _spoil_folder(case, place, place / name, random.Random(seed))
    return ["inspect", "in"] if r.random() < 0.2 else words


def _spoil_folder(case: Case, place: Path, config: Path, r: random.Random) -> None:
    how = r.randrange(6)
    if how == 0:
        value = json.loads(config.read_text())
        if "model" in value and isinstance(value["model"], dict):
            value["model"]["vision"] = {"filename": f"{r.choice(PLACES)}{r.choice(['', '/b.onnx', '.onnx'])}"}
        config.write_text(json.dumps(value))
    elif how == 1:
        proto = onnx.load(place / "sub" / "b.onnx", load_external_data=False)
        for entry in r.choice(list(proto.graph.initializer)).external_data:
            if entry.key == "location":
                entry.value = r.choice([p for p in PLACES if "\ud800" not in p] + ["../a.onnx", "b.onnx"])
        (place / "sub" / "b.onnx").write_bytes(proto.SerializeToString())
    elif how == 2:
        name = r.choice(["a.onnx", "sub/b.data", "tokenizer.json", "\x1b[2Jx", "a\nb.onnx", "-o", "sub/c.onnx"])
        (place / name).unlink(missing_ok=True)
        make: Callable[[Path], object] = r.choice(
            [os.mkfifo, lambda p: p.symlink_to(r.choice([mutate.elsewhere(place.parent), "a.onnx"]))]
        )
        make(place / name)
    elif how == 3:
        (place / ".h").mkdir(exist_ok=True)
        (place / ".h" / "b.onnx").unlink(missing_ok=True)
        (place / ".h" / "b.onnx").symlink_to(Path("..", "..", "elsewhere.onnx"))
        onnx.save(folder_models.encoder(), place.parent / "elsewhere.onnx")
        config.write_text(json.dumps({"model": {"decoder": {"filename": ".h/b.onnx"}}}))
    else:
        parts = [config, config, place / "a.onnx", place / "sub" / "b.onnx", place / "sub" / "b.data"]
        spoil(case, r.choice([each for each in parts if each.is_file()]))  # one of them may be a pipe by now


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {
    "texts": texts,
    "lines": lines,
    "sound": sound,
    "processor": processor,
    "table": table,
    "folder": models,
}
