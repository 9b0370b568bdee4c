"""Score a model of this folder, float or quantized, on data that neither training nor calibration saw.

python models/evaluate.py digits_cnn
python models/evaluate.py digits_cnn digits_cnn.w8a8.onnx
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

FOLDER = Path(__file__).parent
BATCH = 20


def accuracy(logits: NDArray[np.floating], labels: NDArray[np.uint8]) -> float:
    """Percent of the `labels`, `[n]`, that have the largest of the `logits`, `[n, classes]`."""
    return 100 * float(np.mean(logits.argmax(-1) == labels))


def nats(logits: NDArray[np.floating], labels: NDArray[np.uint8]) -> float:
    """Mean negative log-likelihood of each of the `labels`, `[n, seq]`, under the `logits`, `[n, seq, classes]`."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    right = np.take_along_axis(x, labels[..., None].astype(np.int64), -1)[..., 0]
    return float(np.mean(np.log(np.exp(x).sum(-1)) - right))


#: What each model is measured by, and in which words.
SCORES = {
    "digits_cnn": (accuracy, "{:.2f} % of {} digits right"),
    "text_transformer": (nats, "{:.4f} nats per character, {} pieces of text"),
}


def score(name: str, path: Path | None = None) -> tuple[float, int]:
    """(score, samples) of the model called `name`, or of the file at `path` in its place."""
    session = ort.InferenceSession(path or FOLDER / f"{name}.onnx", providers=["CPUExecutionProvider"])
    wanted = session.get_inputs()[0]
    dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}[wanted.type]
    with np.load(FOLDER / f"{name}_eval.npz") as data:
        x, labels = data[wanted.name].astype(dtype), data["labels"]
    logits = [session.run(["logits"], {wanted.name: x[i : i + BATCH]})[0] for i in range(0, len(x), BATCH)]
    return SCORES[name][0](np.concatenate(logits), labels), len(x)


def main() -> None:
    parser = argparse.ArgumentParser(description="Score a model on held-out data.")
    parser.add_argument("name", choices=list(SCORES))
    parser.add_argument("path", type=Path, nargs="?", help="a quantized file; without, the float model is scored")
    given = parser.parse_args()
    value, samples = score(given.name, given.path)
    print(f"{given.path or given.name + '.onnx'}: {SCORES[given.name][1].format(value, samples)}")


if __name__ == "__main__":
    main()
