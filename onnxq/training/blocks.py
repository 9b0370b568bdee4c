"""Block by block first: each part of the student learns to give what the teacher's gives, on what the parts before it
leave. What goes into a block is computed once and kept, so that a step costs no more than the block itself.

Source: Li et al., BRECQ: Pushing the Limit of Post-Training Quantization by Block Reconstruction (ICLR 2021), with the
inputs of the quantized model as Nagel et al. have them (Up or Down?, ICML 2020, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
import torch

from onnxq.errors import BadRecipe, amount
from onnxq.model import graph
from onnxq.progress import Progress
from onnxq.training.batches import Batch, Samples, order
from onnxq.training.channels import is_better, match, places_of
from onnxq.training.graph.execution import State, reads
from onnxq.training.graph.module import GraphModule
from onnxq.training.loop import optimizer_of
from onnxq.training.losses import distance
from onnxq.training.settings import Settings
from onnxq.training.student import Student

#: Bytes of what goes into blocks that is kept, at most; and of the values inside of one while channels are matched.
KEPT, INSIDE = 1 << 30, 1 << 29
#: Bytes of a number that goes into a block: for the student, for the teacher, and what the teacher makes of it; and of
#: one inside, where a second value may be there for each.
_EACH, _INSIDE = 12, 16
#: The learning rate of blocks, in parts of that of the whole: what a few layers change does not add up over many.
FASTER = 3.0
#: Samples on which channels are matched, at most.
MATCHED = 256


@dataclass(frozen=True)
class Block:
    """Nodes between two values of which nothing else goes by.

    Attributes:
        reads: the value before it; empty: the inputs.
        makes: the value behind it; of the last one the outputs.
        learned: what its nodes read that learns, by name.
    """

    reads: str
    makes: tuple[str, ...]
    learned: tuple[str, ...]


@dataclass
class _Passing:
    """A batch on its way: what is known of it, by the student and by the teacher, in front of the next block."""

    batch: Batch
    mine: State = field(default_factory=dict)
    true: State = field(default_factory=dict)

    @property
    def states(self) -> tuple[State, State]:
        """With the inputs, of which shapes may be made again."""
        return {**self.batch.feed, **self.mine}, {**self.batch.feed, **self.true}


def blocks_of(student: Student, sizes: Mapping[str, int] | None = None, most: float = math.inf) -> list[Block]:
    """The student's blocks with something to learn, in order.

    Args:
        sizes: of the values between nodes (`narrow_values`). A block does not end where more numbers go on than came
            in, and fewer behind that: those are the wide insides of bottlenecks; nor at a value of no numbers.
        most: numbers that may go on.
    """
    learned = {name for each in student.parameters().values() for name, _ in each}
    outputs = tuple(value.name or "" for value in student.module.model.graph.outputs if value.dtype in _FLOATS)
    if sizes is not None:
        outputs = tuple(name for name in outputs if sizes.get(name))
    places = list(_narrow(student.module.model, learned))
    ends = [end for i, (_, end) in enumerate(places) if end and (not i or end != places[i - 1][1])]
    if sizes is not None:
        ends = list(_without_wide([end for end in ends if 0 < sizes.get(end, 0) <= most], sizes))
    found, before, names = list[Block](), "", list[str]()
    for node, behind in places:
        names += [name for value in (*reads(node), *node.outputs) if (name := value.name or "") in learned]
        if behind in ends and names:
            found.append(Block(before, (behind,), tuple(dict.fromkeys(names))))
            before, names = behind, []
    return [*found, Block(before, outputs, tuple(dict.fromkeys(names)))] if names and outputs else found


_FLOATS = (None, *graph.FLOATS)


def _without_wide(ends: Sequence[str], sizes: Mapping[str, int]) -> Iterator[str]:
    before = math.inf  # inputs are few numbers in front of many that describe them
    for i, end in enumerate(ends):
        size = sizes.get(end, 0)
        after = next((found for other in ends[i + 1 :] if (found := sizes.get(other, 0)) != size), size)
        if size <= before or after >= size:
            yield end
            before = size


def narrow_values(student: Student) -> list[str]:
    """The values by which everything that is learned passes, in order."""
    learned = {name for each in student.parameters().values() for name, _ in each}
    return list(dict.fromkeys(end for _, end in _narrow(student.module.model, learned) if end))


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


class Walk:
    """A way through the student, block by block: channels are matched, then the block is trained.

    Attributes:
        nbytes: that are kept on the way.
    """

    def __init__(self, student: Student, teacher: GraphModule, samples: Samples, settings: Settings) -> None:
        self.student, self.teacher, self.settings = student, teacher, settings
        self.places = places_of(student)
        self.moved = self.better = 0
        size = min(settings.batch, len(samples.train))
        numbers = next(order(len(samples.train), settings.seed))
        chosen = [samples.train[k] for k in (numbers if settings.block_steps else numbers[:MATCHED])]
        several = [one for i in range(0, len(chosen), size) for one in samples.batch(chosen[i : i + size])]
        sizes = self._sizes(several[0]) if self.places or settings.block_steps else {}
        most, inside = (x if settings.memory is None else min(x, settings.memory // 4) for x in (KEPT, INSIDE))
        self.blocks = blocks_of(student, sizes, most / (_EACH * len(several))) if sizes else []
        widest = _INSIDE * max([1, *(sizes.get(name, 1) for name in self.places)])
        self._matching = min(-(-MATCHED // several[0].count), max(1, inside // widest))
        each = _EACH * max([1, *(sizes.get(name, 1) for block in self.blocks for name in block.makes)])
        self._training = [_Passing(one) for one in several[: max(1, most // each)]]
        held = samples.held_back
        self._held = [_Passing(one) for i in range(0, len(held), size) for one in samples.batch(held[i : i + size])]
        self._in_step = 1 if samples.joined else size
        self.nbytes = (len(self._training) + len(self._held)) * each + self._matching * widest if self.blocks else 0

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _sizes(self, batch: Batch) -> dict[str, int]:
        """Numbers of a batch in values between blocks and behind layers."""
        names = list(dict.fromkeys([*narrow_values(self.student), *self.places, *self.student.module.outputs]))
        made = self.teacher.run(batch.feed, names)
        is_float = {name: isinstance(x, torch.Tensor) and x.is_floating_point() for name, x in made.items()}
        return {name: x.numel() if is_float[name] else 0 for name, x in made.items()}

    def through(self, progress: Progress) -> None:
        """Match and train every block; one that does not get nearer to the float one stays as it was."""
        if self.blocks:
            progress.start("fitting blocks", len(self.blocks) * max(1, self.settings.block_steps), "steps")
        for number, block in enumerate(self.blocks):
            self._pass(block, number, progress)

    def _pass(self, block: Block, number: int, progress: Progress) -> None:
        every = [*self._training, *self._held]
        wanted = [self._run(self.teacher, each.states[1], block) for each in every]
        before = self._distance(block, wanted)
        matched = self._match(block)
        if matched and is_better(after := self._distance(block, wanted), before):
            before, self.moved = after, self.moved + matched
        elif matched:
            self.student.load(self._start)
        if self.settings.block_steps:
            self._train(block, number, wanted, before, progress)
        else:
            progress.advance(1)
        for each, true in zip(every, wanted, strict=True):
            each.mine, each.true = self._run(self.student.module, each.states[0], block), true

    def _match(self, block: Block) -> int:
        self._start = self.student.state(block.learned)
        states = [each.states for each in self._training[: self._matching]]
        return match(self.student, self.teacher, self.places, states, block.makes) if self.places else 0

    def _train(self, block: Block, number: int, wanted: Sequence[State], before: float, progress: Progress) -> None:
        student, settings = self.student, self.settings
        try:
            optimizer = optimizer_of(student, FASTER * settings.rate, block.learned)
        except BadRecipe:
            return
        start = student.state(block.learned)
        turns = (i for numbers in order(len(self._training), settings.seed + number) for i in numbers)
        for step in range(settings.block_steps):
            for group in optimizer.param_groups:
                group["lr"] = group["rate"] * settings.factor(step, settings.block_steps)
            optimizer.zero_grad()
            chosen = [next(turns) for _ in range(min(self._in_step, len(self._training)))]
            count = sum(self._training[i].batch.count for i in chosen)
            for i in chosen:
                loss = self._loss(self._training[i], block, wanted[i])
                # No gradient goes back where all that learns is the range of what is read, which was rounded before.
                if loss.requires_grad and bool(torch.isfinite(loss)):
                    (loss * (self._training[i].batch.count / count)).backward()
            optimizer.step()
            student.limit(block.learned)
            progress.advance(1)
        if is_better(self._distance(block, wanted), before):
            self.better += 1
        else:
            student.load(start)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _run(self, module: GraphModule, state: State, block: Block) -> State:
        return module.run(state, block.makes)

    def _loss(self, each: _Passing, block: Block, wanted: State) -> torch.Tensor:
        """How far the student's block is from the teacher's, on what each gets."""
        made = self.student.module.run(each.states[0], block.makes)
        return torch.stack([distance(made[name].float(), x.float()) for name, x in wanted.items()]).sum()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _distance(self, block: Block, wanted: Sequence[State]) -> float:
        """On samples held back."""
        held = list(zip(self._held, wanted[len(self._training) :], strict=True))
        total = sum(float(self._loss(each, block, true)) * each.batch.count for each, true in held)
        return total / max(1, sum(each.batch.count for each, _ in held))

    def notes(self) -> Iterator[str]:
        """What was done, in sentences."""
        if self.moved:
            layers = amount(self.moved, "layer")
            yield f"channels of {layers} got the scales and biases that are nearest to float"
        if self.settings.block_steps and self.blocks:
            yield f"{self.better} of {len(self.blocks)} blocks learned to give what the float ones give"
