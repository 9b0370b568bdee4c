"""Labels of any type in the three places that read them: `train`, and `lora train` by labels and by a loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray

from onnxq.errors import BadData

torch = pytest.importorskip("torch")
from onnxq.cli import main  # noqa: E402
from onnxq.quality.decisions import Classes  # noqa: E402
from onnxq.training.adapters.learning.losses import ByFunction, ByLabels  # noqa: E402
from onnxq.training.batches import Samples  # noqa: E402
from onnxq.training.losses import cross_entropy  # noqa: E402

RIGHT = np.array([3, 0, 9, 1])
OUTPUTS = {"y": torch.from_numpy(tiny.normal(4, 10))}


def own(outputs: Any, labels: Any, inputs: Any) -> Any:
    """What `--loss` names here: the cross entropy, of labels of any type."""
    return cross_entropy(outputs, labels, {"y": Classes(-1)}, "z")


def by_train(labels: NDArray) -> float:
    """The loss of four samples of one label each, read as `train` reads them."""
    feeds = [{"z": labels[i : i + 1]} for i in range(4)]
    (batch,) = Samples(feeds, feeds, "z", joined=True).batch(feeds)
    return float(own(OUTPUTS, torch.from_numpy(batch.labels), {}))


def by_labels(labels: NDArray) -> float:
    return float(ByLabels("z", ["y"], {})(OUTPUTS, {"z": labels}))


def by_loss(labels: NDArray) -> float:
    return float(ByFunction("test_training_labels:own", "z")(OUTPUTS, {"z": labels}))


Place = Callable[[NDArray], float]
PLACES = pytest.mark.parametrize("place", [by_train, by_labels, by_loss])


@PLACES
@pytest.mark.parametrize("dtype", ["u1", "<u2", ">u2", ">u8", "Q", "b", ">i4", ">i8", "q", "f2", ">f4", ">f8", "g"])
def test_labels_of_any_numbers_are_the_same_labels(place: Place, dtype: str) -> None:
    labels = RIGHT.astype(dtype)
    if place is by_labels and labels.dtype.kind == "f":  # no classes there, but numbers
        labels = np.repeat(labels[:, None], 10, axis=1)
        wanted = float(np.square(OUTPUTS["y"].numpy() - RIGHT[:, None]).mean())
    else:
        scores = OUTPUTS["y"].numpy().astype(np.float64)
        wanted = float((np.log(np.exp(scores).sum(1)) - scores[range(4), RIGHT]).mean())
    assert place(labels) == pytest.approx(wanted, rel=1e-5)


@PLACES
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array(["cat"] * 4), "the labels 'z' are of type <U3, as in 'cat'; give classes or numbers"),
        (np.array([b"cat"] * 4), "the labels 'z' are of type |S3, as in b'cat'; give"),
        (np.array([3, 1, 2, None]), "the labels 'z' are of type object, as in 3; give"),
        (RIGHT.astype(complex), "the labels 'z' are of type complex128, as in (3+0j); give"),
        (RIGHT.astype(ml_dtypes.bfloat16), "the labels 'z' are of type bfloat16, as in "),
        (RIGHT.astype(ml_dtypes.float8_e5m2), "the labels 'z' are of type float8_e5m2, as in "),
        (
            np.array([3, 1, 2, 2**63 + 5], np.uint64),
            "the labels 'z' hold 9223372036854775813, which does not fit int64",
        ),
        (np.array([3, 2**64 - 100, 2, 2], ">u8"), "the labels 'z' hold 18446744073709551516, which does not fit int64"),
    ],
    ids=lambda x: str(x.dtype) if isinstance(x, np.ndarray) else "",
)
def test_labels_that_are_none_are_told_as_they_are(place: Place, labels: NDArray, words: str) -> None:
    with pytest.raises(BadData) as told:
        place(labels)
    assert words in str(told.value)


@pytest.mark.skipif(np.finfo(np.longdouble).maxexp == np.finfo(float).maxexp, reason="no numbers beyond float64 here")
@PLACES
def test_labels_beyond_float64_are_told(place: Place) -> None:
    with pytest.raises(BadData, match=r"the labels 'z' hold 1e\+400, which does not fit float64"):
        place(np.array([1, 2, np.longdouble(10) ** 400, 3]))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array([3, 2, 2, 2**63 - 1]), "the labels 'z' are 2 to 9223372036854775807; output 'y' has 10 classes"),
        (np.array([3, 2, -2, 4], np.int8), "the labels 'z' are -2 to 4; output 'y' has 10 classes"),
        (np.array([3, 1e300, 2, 2]), r"the labels 'z' are 2 to 1e\+300; output 'y' has 10 classes"),
        (np.array([3, 1234567, 2, -1e19]), r"the labels 'z' are -1e\+19 to 1234567; output 'y'"),
        (np.array([3, 0.5, 2, 2]), "the labels 'z' hold 0.5; output 'y' takes numbers of classes, whole ones below 10"),
        (np.array([3, np.inf, 2, 2]), "the labels 'z' hold inf; output 'y' takes"),
    ],
)
def test_numbers_that_are_no_classes_are_told_as_they_are(labels: NDArray, words: str) -> None:
    for place in (by_train, by_labels) if labels.dtype.kind == "i" else (by_train,):
        with pytest.raises(BadData, match=words):
            place(labels)


def test_numbers_to_learn_that_float32_does_not_hold_are_told() -> None:
    labels = np.full((4, 10), 3.0)
    labels[1, 2] = -1e300
    with pytest.raises(BadData, match=r"the labels 'z' hold -1e\+300, which does not fit float32"):
        by_labels(labels)


def test_the_command_says_it_in_a_sentence(tmp_path: Path) -> None:
    made = tiny.model(
        "g (float[N, 64] x) => (float[N, 10] y) { h = MatMul(x, w) y = Softmax(h) }", {"w": tiny.normal(64, 10)}
    )
    path, data = tiny.save(made, tmp_path), tmp_path / "d.npz"
    np.savez(data, x=tiny.normal(8, 1, 64), z=np.full((8, 1), 2**63 + 5, np.uint64))
    words = ["train", str(path), "-s", "w4a16", "-t", "onnx", "--data", str(data), "--labels", "z", "--steps", "1"]
    done = CliRunner().invoke(main, [*words, "--no-check", "-o", str(tmp_path / "out.onnx")], catch_exceptions=False)
    assert done.exit_code == 1 and "hold 9223372036854775813, which does not fit int64" in done.output
