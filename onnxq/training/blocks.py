"""Block by block first: each part of the student learns to give what the teacher's gives, on what the parts before it
leave.

Source: Li et al., BRECQ: Pushing the Limit of Post-Training Quantization by Block Reconstruction (ICLR 2021), with the
inputs of the quantized model as Nagel et al. have them (Up or Down?, ICML 2020, section 3.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
import torch

from onnxq.errors import BadRecipe
from onnxq.progress import Progress
from onnxq.training.batches import Samples, batches_of
from onnxq.training.graph.execution import reads
from onnxq.training.graph.module import GraphModule
from onnxq.training.loop import optimizer_of
from onnxq.training.losses import distance
from onnxq.training.settings import Settings
from onnxq.training.student import Student


@dataclass(frozen=True)
class Block:
    """Nodes between two values of which nothing else goes by.

    Attributes:
        reads: the value before it; empty: the inputs.
        makes: the value behind it.
        learned: what its nodes read that learns, by name.
    """

    reads: str
    makes: str
    learned: tuple[str, ...]


def blocks_of(student: Student) -> list[Block]:
    """The student's blocks with something to learn, in order; what lies behind the last of them is in none."""
    learned = {name for each in student.parameters().values() for name, _ in each}
    found, before, names = list[Block](), "", list[str]()
    for node, behind in _narrow(student.module.model, learned):
        names += [name for value in (*reads(node), *node.outputs) if (name := value.name or "") in learned]
        if behind and names:
            found.append(Block(before, behind, tuple(dict.fromkeys(names))))
            before, names = behind, []
    return found


def _narrow(model: ir.Model, learned: set[str]) -> Iterator[tuple[ir.Node, str]]:
    """Each node, and the one value that goes on behind it of all that depend on what is learned; "" if more do."""
    nodes = list(model.graph)
    last: dict[str, int] = {}
    for i, node in enumerate(nodes):
        last |= {value.name or "": i for value in reads(node)}
    last |= {value.name or "": len(nodes) for value in model.graph.outputs}
    live: dict[str, int] = {}
    for i, node in enumerate(nodes):
        depends = any((value.name or "") in learned or (value.name or "") in live for value in reads(node))
        if depends:
            live |= {value.name or "": last.get(value.name or "", -1) for value in node.outputs}
        live = {name: until for name, until in live.items() if until > i}
        yield node, next(iter(live)) if len(live) == 1 else ""


def train_blocks(
    student: Student, teacher: GraphModule, samples: Samples, settings: Settings, progress: Progress
) -> list[str]:
    """Train each block by itself; a block that did not get better stays as it was.

    Returns:
        What was done, in sentences.
    """
    blocks = blocks_of(student)
    if not blocks:
        return []
    progress.start("training blocks", len(blocks) * settings.block_steps, "steps")
    better = 0
    for number, block in enumerate(blocks):
        better += _train(student, teacher, samples, settings, block, number, progress)
    return [f"{better} of {len(blocks)} blocks learned to give what the float ones give"]


def _train(
    student: Student,
    teacher: GraphModule,
    samples: Samples,
    settings: Settings,
    block: Block,
    number: int,
    progress: Progress,
) -> bool:
    try:
        optimizer = optimizer_of(student, settings.rate, block.learned)
    except BadRecipe:
        return False
    run = _Run(student, teacher, samples, block)
    start, before = student.state(), run.held_back(settings.batch)
    batches = batches_of(len(samples.train), settings.batch, settings.seed + number)
    for step in range(settings.block_steps):
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * settings.factor(step, settings.block_steps)
        optimizer.zero_grad()
        chosen = next(batches)
        for batch in samples.batch([samples.train[i] for i in chosen]):
            loss = run.loss(batch.feed)
            if bool(torch.isfinite(loss)):
                (loss * (batch.count / len(chosen))).backward()
        optimizer.step()
        student.limit()
        progress.advance(1)
    is_better = run.held_back(settings.batch) < before
    if not is_better:
        student.load(start)
    return is_better


@dataclass(frozen=True)
class _Run:
    student: Student
    teacher: GraphModule
    samples: Samples
    block: Block

    def loss(self, feed: dict) -> torch.Tensor:
        """How far the student's block is from the teacher's, on what each gets."""
        module, block = self.student.module, self.block
        with torch.no_grad():
            wanted = self.teacher.run(feed, [block.makes])[block.makes]
            known = dict(feed)
            if block.reads:
                known[block.reads] = module.run(feed, [block.reads])[block.reads]
        return distance(module.run(known, [block.makes])[block.makes].float(), wanted.float())

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def held_back(self, size: int) -> float:
        held, total = self.samples.held_back, 0.0
        for start in range(0, len(held), size):
            for batch in self.samples.batch(held[start : start + size]):
                total += float(self.loss(batch.feed)) * batch.count
        return total / max(1, len(held))
