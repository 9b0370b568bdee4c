"""A saved file runs on the batches that the float model runs on, whatever batch the data have; or it is not kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import tiny

import onnxq
from onnxq.calibration.lengths import with_other_lengths
from onnxq.checking import judging
from onnxq.checking.outputs.counted import counted
from onnxq.errors import CheckFailed
from onnxq.job import Job
from onnxq.samples.trials import Trials

pytestmark = pytest.mark.usefixtures("quick")
Break = Callable[[ir.Node], None]
TEXT = """g (float[batch, 12, 64] x) => (float[batch, 6, 128] y) {
  h = MatMul(x, w)  most = ReduceMax<axes = [1], keepdims = 1>(h)  s = Add(h, most)  y = Reshape(s, shape) }"""


def model(folder: Path) -> Path:
    constants = {"w": tiny.normal(64, 64), "shape": np.array([0, 6, -1])}
    return tiny.save(tiny.model(TEXT, constants), folder)


def samples(rows: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((rows, 12, 64)).astype(np.float32)} for _ in range(8)]


def reshaping(*shape: int) -> Break:
    def change(node: ir.Node) -> None:
        if node.op_type == "Reshape" and node.outputs[0].name == "y":
            value = ir.Value(name="one_batch", const_value=ir.tensor(np.array(shape)))
            assert node.graph is not None
            node.graph.register_initializer(value)
            node.replace_input_with(1, value)

    return change


def mixing(node: ir.Node) -> None:
    if node.op_type == "ReduceMax":
        node.attributes["axes"] = ir.AttrInt64s("axes", [0, 1])


def breaking(monkeypatch: pytest.MonkeyPatch, change: Break) -> None:
    """What is written does for one batch what it should."""
    rewritten = Job.rewritten

    def broken(self: Job, *args: Any, **options: Any) -> ir.Model:
        made = rewritten(self, *args, **options)
        for node in list(made.graph):
            change(node)
        return made

    monkeypatch.setattr(Job, "rewritten", broken)


@pytest.mark.parametrize("rows", [0, 1, 2], ids=["no data", "one row", "two rows"])
@pytest.mark.parametrize("fails", ["shape", "run"])
def test_a_file_for_one_batch_alone_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, fails: str
) -> None:
    path, output, batch = model(tmp_path), tmp_path / "q.onnx", max(1, rows)
    shape, said = ((batch, 6, -1), r"'y' has the shape") if fails == "shape" else ((batch, 6, 128), "cannot run")
    recipe = onnxq.Recipe("w8a16", keep_slow=True)
    data = samples(rows) if rows else None
    assert onnxq.quantize(path, tmp_path / "good.onnx", recipe, data=data).check is not None
    breaking(monkeypatch, reshaping(*shape))
    with pytest.raises(CheckFailed, match=said):
        onnxq.quantize(path, output, recipe, data=data)
    assert not output.exists()


def test_an_output_of_another_shape_is_told_of_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, reshaping(1, 6, -1))
    with pytest.raises(CheckFailed) as failed:
        onnxq.quantize(model(tmp_path), tmp_path / "q.onnx", onnxq.Recipe("w8a16"), data=samples(1))
    assert str(failed.value) == (
        "the saved model is broken: output 'y' has the shape [1, 6, 256] where the float model's has [2, 6, 128], "
        "on two of the data in one batch (x [2, 12, 64])"
    )


@pytest.mark.parametrize(("rows", "label"), [(0, "two rows"), (1, "two of the data in one batch")])
def test_rows_that_are_mixed_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, label: str) -> None:
    path, recipe = model(tmp_path), onnxq.Recipe("w8a16", keep_slow=True)
    data = samples(rows) if rows else None
    good = onnxq.quantize(path, tmp_path / "good.onnx", recipe, data=data).check
    breaking(monkeypatch, mixing)
    bad = onnxq.quantize(path, tmp_path / "q.onnx", recipe, data=data).check
    assert good is not None and bad is not None
    assert label not in good.kinds
    assert bad.sqnr == bad.kinds[label] < good.sqnr - 10


@pytest.mark.parametrize(("rows", "further"), [((1,), [2]), ((3,), [1]), ((1, 2), [])])
def test_which_batch_is_tried_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: tuple[int, ...], further: list[int]
) -> None:
    made: list[Trials] = []

    def seen(*given: Any) -> Trials:
        made.append(with_other_lengths(*given))
        return made[0]

    monkeypatch.setattr(judging, "with_other_lengths", seen)
    data = [sample for each in zip(*map(samples, rows), strict=True) for sample in each]
    onnxq.quantize(model(tmp_path), tmp_path / "q.onnx", onnxq.Recipe("w8a16", keep_slow=True), data=data)
    assert [trial.feed["x"].shape[0] for trial in made[0].further] == further
    if further == [2]:
        assert not np.array_equal(*made[0].further[0].feed["x"])


@pytest.mark.parametrize(
    ("text", "is_counted"),
    [
        ("p = Relu(x)  n = NonZero(p)  y = Cast<to = 1>(n)", True),
        ("n = Shape(x)  y = Reshape(x, n)", False),
        ("p = Relu(x)  n = NonZero(p)  s = Shape(n)  y = Expand(x, s)", True),
        ("m = ReduceMax(x)  k = Cast<to = 7>(m)  l = Reshape(k, one)  y = Slice(x, one, l)", True),
        ("i = ArgMax(x)  y = Gather(x, i)", False),
    ],
)
def test_shapes_that_numbers_decide(text: str, is_counted: bool) -> None:
    made = tiny.model(f"g (float[a, b] x) => (float[c, d] y) {{ {text} }}", {"one": np.array([1])})
    assert counted(ir.from_proto(made)) == ({"y"} if is_counted else set())
