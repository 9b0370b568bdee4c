"""The float model as a teacher and, with what a plan makes of it, as a student; and back to a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from onnxq.encoding.lazy import Encoding, FlatGivenTensor, GivenTensor, unflattened
from onnxq.job import Job
from onnxq.model import graph
from onnxq.model.origin import COPY, identity
from onnxq.model.weights import Weight, find_weights
from onnxq.passes import low_rank
from onnxq.passes.encodings import encodings
from onnxq.passes.fold_alpha import fold_alpha
from onnxq.passes.unshare import unshare
from onnxq.plan import Method, Plan
from onnxq.planning.scales import activation_scales
from onnxq.planning.shared_weights import reconciled
from onnxq.request import Learned
from onnxq.summaries.ranges import Range, Ranges
from onnxq.training.graph.module import GraphModule
from onnxq.training.learned import LearnedRange, LearnedWeight, can_learn

#: Operators whose factors are those of a normalization, by the inputs that hold them.
_NORMS = {
    "BatchNormalization": (1,),
    "GroupNormalization": (1,),
    "InstanceNormalization": (1,),
    "LayerNormalization": (1,),
    "RMSNormalization": (1,),
    "SimplifiedLayerNormalization": (1,),
    "SkipLayerNormalization": (2,),
    "SkipSimplifiedLayerNormalization": (2,),
}
#: Operators that add, by the inputs that may be a bias.
_BIASES = {"Add": (0, 1), "Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,), "LSTM": (3,), "GRU": (3,), "RNN": (3,)}
#: The second parameter of normalizations is a bias too.
_BIASES |= {op: (places[0] + 1,) for op, places in _NORMS.items() if "RMS" not in op and "Simplified" not in op}
#: How far a code may move that is only rounded otherwise: from where the weight lies to either neighbour.
NEIGHBOURS = 1.0


class Student:
    """A model that computes what the file will compute.

    Args:
        job: with the model to start from.
        plan: what becomes of it.
        ranges: of activations.
        learn: words of `settings.LEARNED`.

    Attributes:
        module: it, as a module.
        weights, ranges, floats: what may be learned, by name of the initializer, or of the first of the values that
            share a scale.
        sizes: of floats that may be learned, the root of the mean square that they start with.
        frozen: weights whose codes stay, with the reason.
        copies: how many weights learn as several.
    """

    def __init__(self, job: Job, plan: Plan, ranges: Ranges, learn: Iterable[str]) -> None:
        there = _copied(job.model, _initializers(job.model))
        coded = {name for name, choice in plan.choices.items() if choice.method not in (Method.KEEP, Method.HALF)}
        job = _with(job, fold_alpha(job.model, coded))
        self.plan, self.ranges, self.learn = plan, ranges, set(learn)
        found = _encoded(job, plan, ranges)
        several = {name for forms in (found, _ranks(job, plan)) for name, each in forms.items() if len(each) > 1}
        if several:
            job = _with(job, unshare(job.model, reconciled(plan, job.model), job.recipe, several))
            found = _encoded(job, plan, ranges)
        self.job = job
        self.module = GraphModule(job.model)
        self.weights: dict[str, LearnedWeight] = {}
        self.activations: dict[str, LearnedRange] = {}
        self.floats: dict[str, torch.nn.Parameter] = {}
        self.sizes: dict[str, float] = {}
        self.frozen: dict[str, str] = {}
        self._values: dict[str, list[str]] = {}
        for parameter in self.module.parameters():
            parameter.requires_grad_(False)
        self._add_weights(found)
        self.copies = len(_copied(job.model, self.weights) - there)
        self._add_ranges()
        self._add_floats()

    def _add_weights(self, found: Mapping[str, list[Encoding]]) -> None:
        how: Any = {
            "codes": bool({"rounding", "weights"} & self.learn),
            "moves": None if "weights" in self.learn else NEIGHBOURS,
            "scales": "scales" in self.learn,
        }
        tied, ranks = self._tied(found), _ranks(self.job, self.plan)
        for name, several in found.items():
            parameter = self.module.weights.get(name)
            if parameter is None or parameter.numel() != several[0].tensor.size:
                self.frozen[name] = "it is another tensor in the file"
                continue
            start, is_turned = several[0].result(), several[0].is_turned
            seen, made = unflattened(start.dequantize(), tuple(parameter.shape), is_turned=is_turned), None
            beside = self._beside(name, ranks.get(name, {}), seen)
            if len(several) > 1 or name in tied:
                self.frozen[name] = "it has several forms in the file"
            elif start.scales is None:  # float16 or bfloat16
                self.frozen[name] = f"it is {start.format.name}"
            elif not can_learn(start):
                self.frozen[name] = f"codes of {start.format.name} are not learned"
            else:
                w = parameter.detach().numpy()
                made = LearnedWeight(start, w, is_turned=is_turned, beside=beside, **how)
                self.weights[name] = made
                self.module.attach(f"weight {name}", made)
                self.module.read_instead[name] = made
            if made is None:  # what is frozen is seen as the file has it
                parameter.data = torch.from_numpy(seen if beside is None else seen + beside).to(parameter.dtype)

    def _beside(self, name: str, ranks: Mapping[int, Weight], seen: NDArray) -> NDArray | None:
        """What is beside the codes of a weight, `seen` in its own shape; None: nothing is."""
        for rank, weight in ranks.items():
            if rank:
                return low_rank.added(weight, seen, rank, self.job.evidence.get(name))
        return None

    def _tied(self, encoded: Container[str]) -> set[str]:
        """Tables and their transposes that are both encoded: codes that learned apart could not be shared."""
        alike: dict[str, set[str]] = {}
        for body in graph.graphs(self.job.model):
            for name, value in body.initializers.items():
                if name in encoded:
                    alike.setdefault(identity(value), set()).add(name)
        return {name for names in alike.values() if len(names) > 1 for name in names}

    def _add_ranges(self) -> None:
        shared: dict[object, LearnedRange] = {}
        for name, scale in activation_scales(self.job.model, self.plan, self.ranges).items():
            if scale not in shared:
                shared[scale] = LearnedRange(scale, learns="ranges" in self.learn)
                self.activations[name] = shared[scale]
                self.module.attach(f"range {name}", shared[scale])
            first = next(key for key, each in self.activations.items() if each is shared[scale])
            self._values.setdefault(first, []).append(name)
            self.module.made_instead[name] = shared[scale]

    def _add_floats(self) -> None:
        """Vectors that are added or multiplied; and with all weights what else stays in float."""
        kinds = kinds_of(self.job.model)
        for name, parameter in self.module.weights.items():
            is_free = name not in self.weights and name not in self.frozen and parameter.numel() > 1
            kind = kinds.get(name, "weights")
            if is_free and (kind in self.learn or ("weights" in self.learn and parameter.dim() > 1)):
                self.floats[name] = parameter.requires_grad_(True)
                self.sizes[name] = float(parameter.detach().square().mean().sqrt())

    def parameters(self) -> dict[str, list[tuple[str, torch.nn.Parameter]]]:
        """What learns, by kind, each with the name that people know."""
        found: dict[str, list[tuple[str, torch.nn.Parameter]]] = {"codes": [], "scales": [], "ranges": [], "floats": []}
        for name, weight in self.weights.items():
            found["codes"] += [(name, weight.place)] if weight.place.requires_grad else []
            found["scales"] += [(name, weight.stretch)] if weight.stretch.requires_grad else []
        for name, each in self.activations.items():
            found["ranges"] += [(name, each.stretch)] if each.stretch.requires_grad else []
        found["floats"] = list(self.floats.items())
        return found

    def limit(self, names: Iterable[str] | None = None) -> None:
        """Bring back what went too far in a step; None: of all weights."""
        for name in self.weights if names is None else names:
            if name in self.weights:
                self.weights[name].limit()

    def result(self) -> Learned:
        """The model with what was learned."""
        model = self.job.model.clone()
        values = _initializers(model)
        for name, weight in self.weights.items():
            value = values[name]
            assert value.const_value is not None
            value.const_value = _given(weight, value.const_value)
        for name, parameter in self.floats.items():
            value = values[name]
            assert value.const_value is not None
            array = parameter.detach().cpu().numpy().astype(value.const_value.dtype.numpy())
            value.const_value = ir.tensor(np.ascontiguousarray(array), name=name)
        return Learned(dataclasses.replace(self.job, model=model), self._learned_ranges())

    def _learned_ranges(self) -> Ranges:
        if "ranges" not in self.learn:
            return self.ranges
        found = dict(self.ranges.values)
        for first, names in self._values.items():
            scale = self.activations[first].result()
            found |= dict.fromkeys(names, Range(scale.low, scale.high))
        return dataclasses.replace(self.ranges, values=found)

    def state(self, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
        """A copy of everything that learns, or of these."""
        return {name: x.detach().clone() for name, x in self._named(names)}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state` gave; what is not in it stays."""
        with torch.no_grad():
            for name, x in self._named():
                if name in state:
                    x.copy_(state[name])

    def _named(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.nn.Parameter]]:
        wanted = None if names is None else set(names)
        every = self.parameters().items()
        return ((f"{kind}/{name}", x) for kind, each in every for name, x in each if wanted is None or name in wanted)


def _initializers(model: ir.Model) -> dict[str, ir.Value]:
    return {name: value for body in graph.graphs(model) for name, value in body.initializers.items()}


def _copied(model: ir.Model, among: Container[str]) -> set[str]:
    """Names of constants of which some readers have copies, among these."""
    values = _initializers(model).items()
    return {str(value.meta[COPY]) for name, value in values if COPY in value.meta and name in among}


def _with(job: Job, model: ir.Model) -> Job:
    """The job with a model in which some weights are copies of others, of whose layers the same is known."""
    evidence = dict(job.evidence)
    for name, value in _initializers(model).items():
        if (of := value.meta.get(COPY)) in evidence:
            evidence[name] = evidence[of]
    return dataclasses.replace(job, model=model, evidence=evidence)


def _encoded(job: Job, plan: Plan, ranges: Ranges) -> dict[str, list[Encoding]]:
    """By name of a weight, the forms that it will have."""
    return encodings(job.rewritten(plan, ranges), _initializers(job.model))


def _ranks(job: Job, plan: Plan) -> dict[str, dict[int, Weight]]:
    """By name of a weight, the ranks of what is beside its codes, each with the first who reads it so."""
    found: dict[str, dict[int, Weight]] = {}
    for weight in find_weights(job.model):
        choice = plan.choices.get(weight.node.name or "")
        rank = 0 if choice is None else choice.rank_by(job.recipe)
        found.setdefault(weight.value.name or "", {}).setdefault(rank, weight)
    return found


def _given(weight: LearnedWeight, tensor: ir.TensorProtocol) -> GivenTensor | FlatGivenTensor:
    made, shape = weight.result(), tuple(tensor.shape.numpy())
    beside = None if weight.beside is None else weight.beside.cpu().numpy()
    if weight.is_turned or made.shape != shape:
        return FlatGivenTensor(
            lambda: made, shape, tensor.dtype, is_turned=weight.is_turned, half_scales=weight.half, beside=beside
        )
    form = (made.format, made.granularity)
    return GivenTensor(lambda: made, shape, tensor.dtype, half_scales=weight.half, form=form, beside=beside)


def kinds_of(model: ir.Model) -> dict[str, str]:
    """Of vectors, whether they are `biases` or `norms`, by what reads them."""
    weights = {weight.value.name for weight in find_weights(model)}
    found: dict[str, str] = {}
    for node in graph.nodes(model):
        for i, value in enumerate(node.inputs):
            tensor = graph.constant(value)
            if value is None or tensor is None or value.name in weights or tensor.dtype not in graph.FLOATS:
                continue
            if i in _BIASES.get(node.op_type, ()):
                found[value.name or ""] = "biases"
            elif i in _NORMS.get(node.op_type, ()) or (
                node.op_type == "Mul" and sum(n > 1 for n in tensor.shape.numpy()) == 1
            ):
                found.setdefault(value.name or "", "norms")
    return found
