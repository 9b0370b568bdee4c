"""Coverage-guided attack on the readers of files, by atheris (`pip install atheris`), which is no dependency.

    python tests/attack/loaders.py -max_total_time=600 -rss_limit_mb=4096

Each input is a byte that chooses the reader, and a file. It ends with the first exception that is none of ours.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

with atheris.instrument_imports(include=["onnxq"]):
    from onnxq import plan, recipe
    from onnxq.calibration import observations
    from onnxq.checkpoints import tensors
    from onnxq.errors import OnnxqError
    from onnxq.folders import contents
    from onnxq.model import load
    from onnxq.passes import prepare
    from onnxq.samples import arrays
    from onnxq.samples.pictures.images import Preprocessing
    from onnxq.samples.pictures.processor import load_processor
    from onnxq.samples.reading import reading_of
    from onnxq.samples.sounds.sound import Sound
    from onnxq.samples.source import open_data
    from onnxq.samples.texts.tokenizer import open_tokenizer

import numpy as np  # noqa: E402
import odd  # noqa: E402

from onnxq.runtime.session import Input  # noqa: E402

INPUTS = (Input("x", np.dtype(np.float32), (None, 64)),)


def _model(path: Path) -> None:
    prepare.prepare(load.load_model(path))


def _checkpoint(path: Path) -> None:
    dict(tensors.open_checkpoint(path))


PICTURE = (Input("x", np.dtype(np.float32), (1, 3, 8, 8)),)
WAVE = (Input("input_values", np.dtype(np.float32), (1, None)),)


def _samples(path: Path, inputs: tuple[Input, ...] = INPUTS, how: object = None) -> None:
    for _ in open_data(path, inputs, reading_of(how)).limited(4):  # type: ignore[arg-type]
        pass


def _configuration(path: Path) -> None:
    contents.open_folder(path.parent)


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
    ("folder/genai_config.json", _configuration),
    ("folder/a.onnx", _configuration),
]
FOLDER = Path(tempfile.mkdtemp(prefix="onnxq-loaders-"))


def one(content: bytes) -> None:
    name, read = READERS[content[0] % len(READERS) if content else 0]
    path = FOLDER / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content[1:])
    with contextlib.suppress(OnnxqError):
        read(path)


def main() -> None:
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for i, (_, made) in enumerate(odd.MODELS.items()):
        raw = made.proto().SerializeToString()
        if len(raw) < 1 << 14:
            (corpus / str(i)).write_bytes(b"\0" + raw)
    atheris.Setup([*sys.argv, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
