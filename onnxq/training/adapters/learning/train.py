"""Train adapters of a quantized model, whose codes stay as they are: QLoRA on an ONNX file.

Source: Dettmers et al., QLoRA (2023).
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch

from onnxq.boundary import bounded, require_types
from onnxq.checking.logits import classes_of
from onnxq.encoding.lazy import release
from onnxq.errors import BadRecipe
from onnxq.files.guard import Guard
from onnxq.job import Environment
from onnxq.model.graph import FLOATS
from onnxq.model.load import external_tensors, load_model
from onnxq.progress import Progress
from onnxq.runtime.own_files.model_files import is_ort
from onnxq.runtime.session import Feed, Session
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import Data, DataSource
from onnxq.training.adapters import files
from onnxq.training.adapters.adapter import Adapter
from onnxq.training.adapters.insert import as_nodes
from onnxq.training.adapters.learning import resume
from onnxq.training.adapters.learning.batches import Batches, counts_samples
from onnxq.training.adapters.learning.fit import Fit, FitOptions
from onnxq.training.adapters.learning.initial import reconstructed
from onnxq.training.adapters.learning.losses import ByFunction, ByLabels, ByTeacher, Loss, held_back_loss
from onnxq.training.adapters.learning.module import AdaptedModule
from onnxq.training.adapters.products import Product, chosen, file_model, has_ranks
from onnxq.training.adapters.use import open_base

#: How adapters begin.
INITIAL = ("zeros", "reconstruct")
#: Of the samples, how many the Gram matrices of `reconstruct` are of, at most.
_GRAM_SAMPLES = 64


@dataclass(frozen=True)
class Task:
    """What to train for.

    Attributes:
        lora: ranks by patterns of node names; the last that matches counts.
        labels: the array of the data with the right answers.
        teacher: a model with the same inputs and outputs, mostly the float one, to be like.
        loss: `module:function` of the outputs by name, as tensors of torch, the labels (None where there are none) and
            the inputs, in the place of both.
        initial: `zeros`: the adapters begin as nothing; `reconstruct`: as what the codes left of the teacher's weights.
        logits: outputs that the user says are scores of classes.

    Raises:
        BadRecipe: there is nothing to train for, or too much.
    """

    lora: Mapping[str, int]
    labels: str | None = None
    teacher: Path | None = None
    loss: str | None = None
    initial: str = "zeros"
    logits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_types(Task, vars(self))
        if self.labels is None and self.teacher is None and self.loss is None:
            raise BadRecipe("say what to train for: --labels NAME, --teacher MODEL or --loss module:function")
        if self.initial not in INITIAL:
            raise BadRecipe(f"unknown beginning '{self.initial}'; choose one of {', '.join(INITIAL)}")
        if self.initial == "reconstruct" and self.teacher is None:
            raise BadRecipe("adapters that make up for codes begin with the float weights: name their model, --teacher")


@dataclass(frozen=True)
class Trained:
    """What training did. Losses are means on the samples held back, over all labels that count, or all samples.

    Attributes:
        ranks: by product.
        before, after: of the model without adapters, and with those that were written.
        saved: of the written adapters, as onnxruntime computes them.
        losses: by step, of what training looked at.
        idle: products that no gradient reached: what is read of them does not decide the loss.
        left_out: steps that changed nothing: their losses were no numbers, or nothing counted.
        elements: numbers that learned.
        packed: bytes of the codes and scales that did not.
    """

    output: Path
    ranks: dict[str, int]
    before: float
    after: float
    saved: float
    losses: dict[int, float]
    idle: tuple[str, ...]
    left_out: int
    elements: int
    packed: int
    nbytes: int


@bounded
def train_adapter(
    model: str | Path,
    output: str | Path,
    data: DataSource | Sampling,
    task: Task,
    *,
    options: FitOptions | None = None,
    progress_file: str | Path | None = None,
    environment: Environment | None = None,
) -> Trained:
    """Train adapters of the quantized `model` on `data`, and write them to `output`: `.onnx_adapter`, a folder for
    PEFT, or `.onnx`, the model with the adapters in it. The model's matrices stay packed, and as they are.

    Args:
        progress_file: `.npz` or `.safetensors`, in which it is kept how far training came; where it is there, training
            goes on from it, bit for bit.

    Raises:
        BadModel: the model cannot be read, or has an operator that torch cannot carry out.
        BadRecipe: a pattern matches no product, or options make no sense.
        BadData: the samples or labels do not fit.
        BadOutput: the output cannot be written.
        CheckFailed: losses are no numbers.
    """
    environment, options, output = environment or Environment(), options or FitOptions(), Path(output)
    guard, progress = environment.guard, environment.progress
    base, graph, products = open_base(model, environment)
    files.promise(output, guard)
    guard.reads(data.source if isinstance(data, Sampling) else data, task.teacher, task.loss)
    guard.watch(progress_file, "--progress")
    ranks = chosen(products, task.lora)
    if task.initial == "reconstruct" and has_ranks(graph):
        raise BadRecipe(f"'{base}' has thin matrices that make up for its codes already: begin with --init zeros")
    products = [product.without_numbers() for product in products if product.name in ranks]
    kept, held_back = _samples(graph, base, data, task)
    joins, loss = counts_samples(graph), _loss(graph, task)
    batches = Batches(kept, options.batch, joins=joins, seed=options.seed)
    looks = Batches(held_back, options.batch, joins=joins)
    keeper = None if progress_file is None else (Path(progress_file), _key(base, ranks, kept, task, options))
    progress.start("reading the weights")
    adapted = AdaptedModule(graph, ranks, options.seed)
    adapted.graph.to("cuda" if torch.cuda.is_available() else "cpu")
    learned = _learn(adapted, (batches, looks, loss), task, options, progress, keeper)
    del adapted, graph
    gc.collect()  # what was learnt from makes room for onnxruntime
    nbytes = files.write_adapter(output, learned.adapter, base, products, guard, progress)
    progress.start("checking what was written")
    saved = _saved(output, base, products, looks, loss)
    elements = learned.adapter.elements
    return Trained(
        output,
        ranks,
        learned.before,
        learned.after,
        saved,
        learned.losses,
        learned.idle,
        learned.left_out,
        elements,
        learned.packed,
        nbytes,
    )


@dataclass(frozen=True)
class _Learned:
    """What is left of training when its module is gone."""

    adapter: Adapter
    before: float
    after: float
    losses: dict[int, float]
    idle: tuple[str, ...]
    left_out: int
    packed: int


def _learn(
    adapted: AdaptedModule,
    judged: tuple[Batches, Batches, Loss],
    task: Task,
    options: FitOptions,
    progress: Progress,
    keeper: tuple[Path, str] | None,
) -> _Learned:
    """
    Args:
        judged: what to learn from, what to judge by, and how.
        keeper: the file of how far training came, and what it is of.
    """
    batches, looks, loss = judged
    fit = Fit(adapted, loss, batches, looks, options)
    before, none = fit.loss_on(looks.all()), adapted.adapter()
    if keeper is not None and keeper[0].exists():
        resume.load(keeper[0], fit, keeper[1])
    elif task.initial == "reconstruct":
        assert task.teacher is not None
        progress.start("making up for the codes")
        adapted.put(reconstructed(adapted, task.teacher, lambda: _few(adapted, batches)))
    fit.run(progress, lambda: None if keeper is None else resume.save(keeper[0], fit, keeper[1]))
    after = fit.loss_on(looks.all())
    if after > before:  # what makes up for codes may not suit these samples
        adapted.put(none)
        after = before
    idle = tuple(name for name in adapted.adapters if name not in fit.reached) if fit.reached else ()
    left_out = fit.state.step - fit.updates
    return _Learned(adapted.adapter(), before, after, dict(fit.state.losses), idle, left_out, adapted.packed_bytes)


def _samples(graph: ir.Model, base: Path, data: DataSource | Sampling, task: Task) -> tuple[Data, Data]:
    """(to learn from, to judge by)."""
    sampling = replace(Sampling.of(data, None), labels=task.labels)
    if sampling.source is None:
        raise BadRecipe("training needs samples: give --data")
    samples = sampling.open_labeled(graph, base)
    return samples.split(sampling.held_back)


def _loss(graph: ir.Model, task: Task) -> Loss:
    classes = classes_of(graph, task.logits)
    if task.loss is not None:
        return ByFunction(task.loss, task.labels)
    if task.labels is not None:
        named = [value.name or "" for value in graph.graph.outputs if value.dtype in (None, *FLOATS)]
        asked = [*classes] if task.logits else []  # none of them, perhaps
        return ByLabels(task.labels, asked or named, classes)
    assert task.teacher is not None
    teacher = Session(task.teacher, threads=0)
    if task.teacher is not None and not task.logits:
        classes = classes_of(load_model(task.teacher)) or classes
    return ByTeacher(teacher, classes, frozenset(each.name for each in teacher.inputs))


def _few(adapted: AdaptedModule, batches: Batches) -> list[Feed]:
    """Some samples, as the model takes them."""
    found: list[Feed] = []
    for feed, _ in batches.all():
        found.append({name: feed[name] for name in adapted.graph.inputs if name in feed})
        if len(found) >= _GRAM_SAMPLES:
            break
    return found


def _saved(output: Path, base: Path, products: list[Product], looks: Batches, loss: Loss) -> float:
    """The loss of what was written, as onnxruntime computes it."""
    if output.suffix == ".onnx":
        session = Session(output, threads=0)
    else:
        model = file_model(base)
        written = files.read_adapter(output, products, Guard()).adapter
        as_nodes(model, written, {product.name: product for product in products})
        session = Session(model, threads=0)
    names = {each.name for each in session.inputs}

    def run(feed: Feed) -> dict[str, torch.Tensor]:
        outputs = session.run({name: x for name, x in feed.items() if name in names})
        return {name: torch.from_numpy(np.array(x)) for name, x in zip(session.outputs, outputs, strict=True)}

    return held_back_loss(loss, looks.all(), run)


def _key(base: Path, ranks: Mapping[str, int], data: Data, task: Task, options: FitOptions) -> str:
    """The same for runs that train the same.

    Args:
        data: what is learnt from; how many samples that is tells how many are held back.
    """
    models = [_content(path) for path in (base, task.teacher) if path is not None]
    parts = (models, sorted(ranks.items()), data.hash(), data.count, repr(task), repr(options))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _content(path: Path) -> str:
    """A hash of every byte of a model's file, and of its data beside it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b")
    # A file of onnxruntime's own format, which may be a teacher, holds all of its data.
    for tensor in [] if is_ort(path) else external_tensors(load_model(path)):
        digest.update(tensor.tobytes())
        release(tensor)
    return digest.hexdigest()
