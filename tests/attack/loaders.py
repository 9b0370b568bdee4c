"""Coverage-guided attack on the readers of files, by atheris (`pip install atheris`), which is no dependency.

    python tests/attack/loaders.py -max_total_time=600 -rss_limit_mb=4096

Each input is a byte that chooses the reader, and a file; `--reader t.parquet` is for that one alone. It begins with
sound files of all kinds, and ends with the first exception that is none of ours.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import atheris

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

with atheris.instrument_imports(include=["onnxq"]):
    from onnxq import plan, recipe
    from onnxq.calibration import observations
    from onnxq.checkpoints import checkpoint, encode_arrays, schemes, tensors
    from onnxq.errors import OnnxqError
    from onnxq.folders import contents
    from onnxq.model import load
    from onnxq.passes import prepare
    from onnxq.runtime import profile
    from onnxq.samples import arrays
    from onnxq.samples.pictures.images import Preprocessing
    from onnxq.samples.pictures.processor import load_processor
    from onnxq.samples.reading import reading_of
    from onnxq.samples.sounds.sound import Sound
    from onnxq.samples.source import open_data
    from onnxq.samples.texts.tokenizer import open_tokenizer
    from onnxq.searching import meter
    from onnxq.summaries import evidence

import corpora  # noqa: E402
import numpy as np  # noqa: E402
import odd  # noqa: E402

from onnxq.runtime.session import Input  # noqa: E402

INPUTS = (Input("x", np.dtype(np.float32), (None, 64)),)


def _model(path: Path) -> None:
    prepare.prepare(load.load_model(path))


def _checkpoint(path: Path) -> None:
    dict(tensors.open_checkpoint(path))
    for layer in schemes.layers_of(checkpoint.open_folder_or_file(path)):
        layer.open().floats()


PICTURE = (Input("x", np.dtype(np.float32), (1, 3, 8, 8)),)
WAVE = (Input("input_values", np.dtype(np.float32), (1, None)),)


def _samples(path: Path, inputs: tuple[Input, ...] = INPUTS, how: object = None) -> None:
    for _ in open_data(path, inputs, reading_of(how)).limited(4):  # type: ignore[arg-type]
        pass


def _configuration(path: Path) -> None:
    contents.open_folder(path.parent)


def _decoded(path: Path) -> None:
    for _, make in encode_arrays.decode_file(path):
        make()


def _evidence(path: Path) -> None:
    evidence.read_index(path, {"x": (1, 64)}, model="m", data="d")
    layer = evidence.Layer(1, 1, path, (0,))
    layer.gram(), layer.held_back()


def _progress(path: Path) -> None:
    meter.Meter(None, path, {}, 1)  # type: ignore[arg-type]  # nothing is measured


READERS: list[tuple[str, Callable[[Path], object]]] = [
    ("model.onnx", _model),
    ("w.safetensors", _checkpoint),
    ("plan.json", plan.load_plan),
    ("model.ranges", observations.load_observations),
    ("recipe.toml", recipe.load_recipe),
    ("data.npy", lambda path: [read() for read in arrays.read_files([path], INPUTS)]),
    ("data.npz", lambda path: [read() for read in arrays.read_files([path], INPUTS)]),
    ("tokenizer.json", open_tokenizer),
    ("preprocessor_config.json", load_processor),
    ("a.png", lambda path: _samples(path, PICTURE, Preprocessing())),
    ("a.wav", lambda path: _samples(path, WAVE, Sound(rate=16000))),
    ("a.flac", lambda path: _samples(path, WAVE, Sound(rate=16000))),
    *((f"t.{kind}", _samples) for kind in ("jsonl", "csv", "parquet", "arrow", "feather")),
    ("w.gguf", _decoded),
    ("e.npz", _decoded),
    ("p.json", profile.load_profile),
    ("seen.npz", _evidence),
    ("out.search", _progress),
    ("folder/genai_config.json", _configuration),
    ("folder/a.onnx", _configuration),
]
#: The reader that is attacked alone; all, if empty.
only = ""
FOLDER = Path(tempfile.mkdtemp(prefix="onnxq-loaders-"))


def one(content: bytes) -> None:
    name, read = READERS[content[0] % len(READERS) if content else 0]
    if only and name != only:
        return
    path = FOLDER / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content[1:])
    with contextlib.suppress(OnnxqError):
        read(path)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Sound files, by the name of their reader."""
    for made in odd.MODELS.values():
        raw = made.proto().SerializeToString()
        if len(raw) < 1 << 14:
            yield "model.onnx", raw
            yield "folder/a.onnx", raw
    x = np.arange(128, dtype=np.float32).reshape(2, 64)
    place = FOLDER / "seeds"
    place.mkdir()
    for suffix in ("gguf", "npz", "safetensors"):
        encode_arrays.encode_arrays({"w": x}, place / f"w.{suffix}", "q8_0")
    np.save(place / "data.npy", x)
    np.savez(place / "data.npz", x=x)
    corpora.tokenizer(place)
    corpora.sound(place / "a.wav", 0.05)
    _with_libraries(place, x)
    texts = {
        "plan.json": '{"scheme": "w8a16", "target": "ort-cpu", "choices": '
        '[{"node": "a", "op": "b", "method": "keep"}]}',
        "model.ranges": '{"model": "a", "data": "b", "method": "minmax", "values": {"x": [0, 1]}, "ranks": {}, '
        '"problems": {}}',
        "recipe.toml": 'scheme = "w8a8"\n[[rule]]\nnodes = "re:a+"\nset = "keep"\n',
        "preprocessor_config.json": '{"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}',
        "t.jsonl": json.dumps({"x": x.tolist()}) + "\n",
        "t.csv": "a,b\n1,2\n",
        "p.json": profile.new_profile().to_json(),
        "genai_config.json": '{"model": {"decoder": {"filename": "a.onnx", "session_options": {}}}}',
    }
    seen = place / "seen.npz"
    evidence.add_input(seen, 0, evidence.Gram(np.eye(64, dtype=np.float32)[None]), [x[:, None]])
    evidence.add_index(seen, evidence.Index("m", "d", ["x"]))
    found = meter.Meter(None, None, {}, 1)  # type: ignore[arg-type]
    texts["out.search"] = json.dumps({"search": found._key, "plans": {"a" * 32: {"harm": 0.5, "sqnr": 20}}})
    for name, text in texts.items():
        (place / name).write_text(text)
    (place / "e.npz").write_bytes((place / "w.npz").read_bytes())
    for name, _ in READERS:
        path = place / Path(name).name
        if path.is_file():
            yield name, path.read_bytes()
    shutil.rmtree(place)


def _with_libraries(place: Path, x: np.ndarray) -> None:
    import pyarrow
    import soundfile
    from PIL import Image
    from pyarrow import feather, ipc, parquet

    table = pyarrow.table({"x": pyarrow.array(x.tolist())})
    parquet.write_table(table, place / "t.parquet")
    feather.write_feather(table, place / "t.feather", compression="lz4")
    with ipc.new_stream(place / "t.arrow", table.schema) as stream:
        stream.write_table(table)
    soundfile.write(place / "a.flac", np.sin(np.arange(800) * 0.1), 16000)
    picture = io.BytesIO()
    Image.new("RGB", (5, 4), (200, 30, 4)).save(picture, "png")
    (place / "a.png").write_bytes(picture.getvalue())


def main() -> None:
    global only
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
    words = sys.argv
    if "--reader" in words:
        at = words.index("--reader")
        only = words[at + 1]
        words = words[:at] + words[at + 2 :]
    numbers = {name: i for i, (name, _) in enumerate(READERS)}
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for i, (name, raw) in enumerate(seeds()):
        (corpus / str(i)).write_bytes(bytes([numbers[name]]) + raw)
    atheris.Setup([*words, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
