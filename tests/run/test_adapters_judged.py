"""By what `lora train` judges: means over all labels that count, or all samples, however they lie in batches."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapters
import numpy as np
import pytest
import tiny
from numpy.typing import NDArray

import onnxq
from onnxq.errors import BadData, BadOutput, BadRecipe, CheckFailed
from onnxq.files.guard import Guard
from onnxq.job import Environment
from onnxq.recipe import Recipe, Rule
from onnxq.runtime.session import Session
from onnxq.samples.sampling import Sampling

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

from onnxq.model.load import load_model  # noqa: E402
from onnxq.training.adapters.learning.batches import Batches  # noqa: E402
from onnxq.training.adapters.learning.fit import Fit, FitOptions  # noqa: E402
from onnxq.training.adapters.learning.losses import ByLabels  # noqa: E402
from onnxq.training.adapters.learning.module import AdaptedModule  # noqa: E402
from onnxq.training.adapters.learning.train import Task, Trained, train_adapter  # noqa: E402
from onnxq.training.adapters.products import has_ranks, products_of, restored  # noqa: E402

torch.set_num_threads(1)
COUNT, HELD = 40, 5
#: The samples that are held back.
JUDGES = [int(i) for i in np.linspace(0, COUNT - 1, HELD + 2)[1:-1]]
IGNORED = -100


def own(outputs: Any, labels: Any, inputs: Any) -> Any:
    """What `--loss` names here."""
    return outputs["y"].square().mean()


def entropies(scores: NDArray, right: NDArray) -> NDArray:
    """Of rows of scores [rows, classes], in nats; only where a label counts."""
    scores, right = scores[right != IGNORED].astype(np.float64), right[right != IGNORED]
    return np.log(np.exp(scores).sum(1)) - scores[range(len(right)), right]


def squares(y: NDArray, right: NDArray) -> NDArray:
    return np.square(y.astype(np.float64) - right)


def classes(*ignored: int) -> NDArray:
    """A class for each sample, of which these of the ones that are held back do not count."""
    found = np.random.default_rng(4).integers(0, adapters.INNER, COUNT)
    found[[JUDGES[i] for i in ignored]] = IGNORED
    return found


def train(base: Path, **options: Any) -> Trained:
    data, task = Sampling(base.parent / "d.npz", held_back=HELD), Task({"*": 4}, "t", **options)
    fit = FitOptions(epochs=3, batch=4, rate=3e-2, every=3)
    return train_adapter(base, base.parent / "out.onnx", data, task, options=fit)


@pytest.mark.parametrize(
    ("labels", "loss", "figures"),
    [
        (classes(), None, entropies),
        (classes(0, 2), None, entropies),
        (classes(0, 1, 2, 3), None, entropies),
        (classes(4), None, entropies),
        (tiny.normal(COUNT, adapters.WIDTH), None, squares),
        (tiny.normal(COUNT, adapters.WIDTH) * 0, "test_adapters_judged:own", squares),
    ],
    ids=["classes", "some count", "only the last batch counts", "the last batch does not", "numbers", "an own loss"],
)
def test_losses_are_means_over_all_that_counts(
    labels: NDArray, loss: str | None, figures: Callable[[NDArray, NDArray], NDArray], tmp_path: Path
) -> None:
    """Of five samples held back, four are a batch and one is the next. What is known for scores is `h`."""
    base, x = adapters.quantized(tmp_path), tiny.normal(COUNT, adapters.WIDTH, seed=3)
    np.savez(tmp_path / "d.npz", x=x, t=labels)
    done = train(base, loss=loss)
    for path, found in ((base, (done.before, done.losses[0])), (done.output, (done.after, done.saved))):
        (scores,) = Session(path).run({"x": x[JUDGES]}, ["h" if figures is entropies else "y"])
        assert found == pytest.approx([figures(scores, labels[JUDGES]).mean()] * 2, rel=1e-4)
    assert done.after == min(done.losses.values())


def test_what_does_not_count_may_be_no_number_and_something_has_to_count(tmp_path: Path) -> None:
    base, x = adapters.quantized(tmp_path), tiny.normal(COUNT, adapters.WIDTH, seed=3)
    x[JUDGES[4]] = np.nan
    np.savez(tmp_path / "d.npz", x=x, t=classes(4))
    assert np.isfinite(train(base).saved)
    np.savez(tmp_path / "d.npz", x=x, t=classes(0, 1, 2, 3, 4))
    (tmp_path / "out.onnx").unlink()
    with pytest.raises(BadData, match="no label of the samples held back counts: there are none, or all are -100"):
        train(base)
    np.savez(tmp_path / "d.npz", x=x, t=classes().reshape(COUNT, 1)[:, :0])
    with pytest.raises(BadData, match="no label of the samples held back counts: there are none"):
        train(base)


def test_steps_in_which_nothing_counts_change_nothing_and_are_told(tmp_path: Path) -> None:
    base, x = adapters.quantized(tmp_path), tiny.normal(COUNT, adapters.WIDTH, seed=3)
    learns = [i for i in range(COUNT) if i not in JUDGES]
    right = classes()
    right[learns[1:]] = IGNORED
    np.savez(tmp_path / "d.npz", x=x, t=right)
    done = train(base)
    batches = -(-len(learns) // 4)
    assert done.left_out == 3 * (batches - 1)
    right[learns] = IGNORED
    np.savez(tmp_path / "d.npz", x=x, t=right)
    (tmp_path / "out.onnx").unlink()
    with pytest.raises(BadData, match="no label of the samples to learn from counts"):
        train(base)
    assert not (tmp_path / "out.onnx").exists()


def test_a_step_of_parts_has_the_gradient_of_all_labels_that_count(tmp_path: Path) -> None:
    """Parts are of two rows, three and four, of which one, three and none count."""
    base, x = adapters.quantized(tmp_path), tiny.normal(9, adapters.WIDTH, seed=3)
    right = np.array([IGNORED, 1, 2, 3, 4, *[IGNORED] * 4])
    rows = slice(0, 2), slice(2, 5), slice(5, 9)
    sampling = Sampling([{"x": x[i], "t": right[i]} for i in rows], labels="t")
    parts, whole = (AdaptedModule(restored(load_model(base)), {adapters.UP: 2, adapters.DOWN: 2}) for _ in range(2))
    batches = Batches(sampling.open_labeled(restored(load_model(base)), base), 3, joins=True)
    assert len(batches.at(0)) == 3
    fit = Fit(parts, ByLabels("t", ["y"], {}), batches, batches, FitOptions(steps=1))
    wanted = functional.cross_entropy(whole({"x": x})["y"], torch.from_numpy(right))
    assert fit.loss_on(batches.all()) == pytest.approx(wanted.item(), rel=1e-5)
    fit._step()
    wanted.backward()
    torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
    for found, other in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(found.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_where_no_look_sees_a_number_nothing_is_written(tmp_path: Path) -> None:
    base, x = adapters.quantized(tmp_path), tiny.normal(COUNT, adapters.WIDTH, seed=3)
    x[JUDGES[1]] = np.nan
    np.savez(tmp_path / "d.npz", x=x, t=classes())
    with pytest.raises(
        CheckFailed, match=r"the loss is no number on the samples held back, in \d+ looks: nothing says"
    ):
        train(base)
    assert not (tmp_path / "out.onnx").exists()


def product(folder: Path, node: str = "MatMul(x, w)") -> Path:
    text = f"g (float[N, 64] x) => (float[N, 64] y) {{ y = {node} }}"
    return tiny.save(tiny.model(text, {"w": tiny.normal(64, 64)}), folder)


@pytest.mark.parametrize("target", ["ort-cpu", "onnxq"])
def test_reconstruction_is_of_what_a_gemm_multiplies_by(target: str, tmp_path: Path) -> None:
    base, teacher = tmp_path / "base.onnx", product(tmp_path, "Gemm<alpha=3.0>(x, w)")
    onnxq.quantize(teacher, base, Recipe("int4", keep_slow=True), target=target, check=False)
    data = [{"x": tiny.normal(1, 64, seed=i)} for i in range(24)]
    task, fit = Task({"*": 16}, teacher=teacher, initial="reconstruct"), FitOptions(steps=1, rate=1e-9)
    done = train_adapter(base, tmp_path / "out.onnx", data, task, options=fit)
    assert done.saved < 0.8 * done.before


def test_a_beginning_that_does_not_help_is_not_kept(tmp_path: Path) -> None:
    base, teacher = tmp_path / "base.onnx", product(tmp_path)
    onnxq.quantize(teacher, base, Recipe("int4", keep_slow=True), check=False)
    other = tiny.save(
        tiny.model(
            "g (float[N, 64] x) => (float[N, 64] y) { y = MatMul(x, w) }", {"w": 5 * tiny.normal(64, 64, seed=9)}
        ),
        tmp_path,
        "other.onnx",
    )
    x = [tiny.normal(1, 64, seed=i) for i in range(24)]
    data = [{"x": each, "t": Session(base).run({"x": each}, ["y"])[0]} for each in x]  # what it gives already
    task = Task({"*": 16}, "t", teacher=other, initial="reconstruct")
    done = train_adapter(base, tmp_path / "out.onnx", data, task, options=FitOptions(steps=1, rate=1e-9))
    assert done.after == done.before and done.losses[0] > 10 * done.before
    assert done.saved == pytest.approx(done.before, abs=1e-3)


def test_bases_with_ranks_have_adapters_beside_their_own_products_alone(tmp_path: Path) -> None:
    teacher = tiny.save(
        tiny.model("g (float[N, 64] x) => (float[N, 64] y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 64)}), tmp_path
    )
    base = tmp_path / "base.onnx"
    onnxq.quantize(teacher, base, Recipe("int4", (Rule("int4+rank4"),), keep_slow=True), check=False)
    data = [{"x": tiny.normal(1, 64, seed=i)} for i in range(24)]
    task = Task({"*": 8}, teacher=teacher)
    assert len(train_adapter(base, tmp_path / "out.onnx", data, task, options=FitOptions(steps=1)).ranks) == 1
    with pytest.raises(BadRecipe, match="has thin matrices that make up for its codes already"):
        train_adapter(base, tmp_path / "two.onnx", data, dataclasses.replace(task, initial="reconstruct"))


def test_constants_of_others_may_be_called_as_ours(tmp_path: Path) -> None:
    constants = {
        "fc_low_rank_a": tiny.normal(64, 32),
        "fc_low_rank_b": tiny.normal(32, 64, seed=1),
        "w": tiny.normal(64, 64),
    }
    nodes = "a = MatMul(x, fc_low_rank_a) b = MatMul(a, fc_low_rank_b) c = MatMul(x, w) y = Add(b, c)"
    path = tiny.save(tiny.model(f"g (float[N, 64] x) => (float[N, 64] y) {{ {nodes} }}", constants), tmp_path)
    model = restored(load_model(path))
    assert len(list(products_of(model))) == 3 and not has_ranks(model)


@pytest.mark.parametrize(
    ("name", "is_file", "words"),
    [
        ("a.onnx", False, "is a folder; name a file in it"),
        ("a.onnx_adapter", False, "is a folder; name a file in it"),
        ("plain", True, "is a file, and an adapter of PEFT is a folder"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_where_no_adapter_can_be_written_is_said_before_it_learns(
    name: str, is_file: bool, words: str, force: bool, tmp_path: Path
) -> None:
    base, output = adapters.quantized(tmp_path), tmp_path / name
    output.write_text("mine") if is_file else output.mkdir()
    environment = Environment(guard=Guard(force))
    with pytest.raises(BadOutput, match=words):
        train_adapter(base, output, [], Task({"*": 4}, "t"), environment=environment)
    assert output.read_text() == "mine" if is_file else output.is_dir()


@pytest.mark.parametrize(("kind", "usual"), [(FitOptions, {}), (Task, {"lora": {"*": 4}, "labels": "t"})])
def test_settings_of_another_type_are_refused(kind: type, usual: dict[str, object]) -> None:
    for each in dataclasses.fields(kind):
        for value in (None, True, 2.5, "x", b"x", [], {"x": "y"}, np.array(3), len):
            with contextlib.suppress(BadRecipe):
                kind(**usual | {each.name: value})
        with pytest.raises(BadRecipe, match=rf"'{each.name}' is of type object; it takes "):
            kind(**usual | {each.name: object()})
