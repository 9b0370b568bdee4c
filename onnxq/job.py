"""Steps 1 to 3: a model loaded, prepared and planned, with everything that was asked for it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from onnxq import targets
from onnxq.errors import BadModel, NothingToDo
from onnxq.files.guard import Guard
from onnxq.model.load import external_tensors, is_quantized, load_model
from onnxq.model.types import infer_types
from onnxq.output import write
from onnxq.passes.prepare import prepare
from onnxq.passes.rewrite import rewrite
from onnxq.plan import Plan
from onnxq.planning.first_plan import make_plan
from onnxq.planning.shared_weights import reconciled
from onnxq.planning.unused_options import UnusedOption, unused_options
from onnxq.progress import QUIET, Progress
from onnxq.recipe import SPEED_SCHEMES, Recipe
from onnxq.runtime.session import THREADS
from onnxq.samples.reading import How
from onnxq.samples.source import Data, DataSource, inputs_of, open_data
from onnxq.summaries.ranges import Ranges
from onnxq.targets import Target

#: Samples used at most, unless told otherwise: more hardly change a range.
LIMIT = 256


@dataclass(frozen=True)
class Job:
    """A prepared model with everything that was asked for it.

    Attributes:
        files: those that the model is read from.
    """

    path: Path
    model: ir.Model
    recipe: Recipe
    target: Target
    plan: Plan
    data: Data | None
    threads: int
    progress: Progress
    source: DataSource | None = None
    preprocessing: How = None
    limit: int | None = LIMIT
    seed: int | None = None
    guard: Guard = field(default_factory=Guard)
    files: tuple[Path, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the model's constants."""
        return write.nbytes_to_write(self.model)

    def rewritten(self, plan: Plan, ranges: Ranges) -> ir.Model:
        return rewrite(self.model, reconciled(plan, self.model), ranges, self.recipe, self.target)


def open_job(
    model: str | Path,
    recipe: Recipe | str = "auto",
    target: str = "ort-cpu",
    data: DataSource | None = None,
    preprocessing: How = None,
    limit: int | None = LIMIT,
    threads: int = THREADS,
    progress: Progress = QUIET,
    seed: int | None = None,
    guard: Guard | None = None,
) -> Job:
    """Steps 1 to 3: load, prepare, plan.

    Args:
        guard: is told what is read here.

    Raises:
        BadModel, BadRecipe, BadData: what is wrong with which of them.
        BadOutput: what is read was to be written.
    """
    guard = Guard() if guard is None else guard
    wanted = (Recipe(recipe) if isinstance(recipe, str) else recipe).resolve(has_data=data is not None)
    place = targets.get(target)
    progress.start("loading")
    loaded = load_model(model)
    # Now: where float types are changed or constants folded, weights are no longer seen to lie beside the model.
    files = tuple({Path(model): None} | {Path(tensor.path): None for tensor in external_tensors(loaded)})
    guard.reads(data, *files)
    quantized = is_quantized(loaded)
    if quantized is not None and not wanted.requantize:
        raise BadModel(
            f"{model} is quantized already ({quantized}): start from the float model, "
            "or give --requantize to quantize what is still in float"
        )
    # int8 kernels read float32: the scales of half-precision weights would themselves not fit half precision.
    widen = place.widens_half or not wanted.schemes.isdisjoint(SPEED_SCHEMES)
    opset = max(place.opset_for(scheme) for scheme in wanted.schemes)
    refusal = prepare(loaded, opset=opset, widen=widen)
    plan = make_plan(loaded, wanted, place, infer_types(loaded), opset_note=refusal)
    if not plan.choices:
        default = next((value.name for value in loaded.graph.inputs if value.const_value is not None), None)
        why = "" if default is None else f" ('{default}' is an input, which a caller may replace)"
        raise NothingToDo(f"{model} holds no floating-point weights that could be quantized{why}: nothing to do")
    for sentence in unused_options(wanted, loaded, plan, path=model):
        warnings.warn(sentence, UnusedOption, stacklevel=2)
    samples = None
    if data is not None:
        samples = open_data(data, inputs_of(loaded), preprocessing, model=loaded, path=model).limited(limit, seed)
    asked = (data, preprocessing, limit, seed)
    return Job(Path(model), loaded, wanted, place, plan, samples, threads, progress, *asked, guard, files)
