"""Steps 1 to 3: a model loaded, prepared and planned, with everything that was asked for it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import algorithms, formats, targets
from onnxq.boundary import require_types, warn
from onnxq.cluster import Engine, open_engine
from onnxq.errors import BadModel, BadRecipe, NothingToDo, UnusedOption
from onnxq.files.guard import Guard
from onnxq.files.staging import scratch
from onnxq.model.channel_places import channel_places
from onnxq.model.load import external_tensors, is_quantized, load_model
from onnxq.model.origin import CONVERTED
from onnxq.model.types import Types, types_of
from onnxq.output import write
from onnxq.output.data_writer import ShardSize, require_shard_size
from onnxq.passes.prepare import prepare
from onnxq.passes.recurrent.join_cells import JoinCells, is_of_8_bits
from onnxq.passes.rewrite import rewrite
from onnxq.passes.scale_channels import scale_channels
from onnxq.plan import Method, Plan
from onnxq.planning import int8_regions
from onnxq.planning.first_plan import make_plan
from onnxq.planning.shared_weights import reconciled
from onnxq.planning.unused_options import unused_options
from onnxq.progress import QUIET, Progress
from onnxq.recipe import Recipe
from onnxq.runtime import work
from onnxq.runtime.consumers import Consumer, open_in
from onnxq.runtime.session import THREADS, Feed
from onnxq.runtime.work import NodeRun
from onnxq.samples.gaps.mended import mended_inputs
from onnxq.samples.gaps.words import in_words
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import Data, DataSource, add_to_hash
from onnxq.schemes import SPEED_SCHEMES, STATIC_SCHEMES
from onnxq.summaries.evidence import Evidence
from onnxq.summaries.ranges import Ranges
from onnxq.targets import Target

#: Float models larger than this are not run whole unless calibration runs them anyway.
WHOLE_MODEL_BYTES = 1 << 30


@dataclass(frozen=True)
class Environment:
    """What a command works with besides what it is to do.

    Attributes:
        threads: on which times are measured; 0 leaves it to onnxruntime.
        progress: is told what is being done.
        guard: is told which files are read and written, and says what may be replaced.
        shard_size: of the data files of a written model: bytes, or `layer`; None: there is one file.
        shared: the cluster of a command, once it was opened.
    """

    threads: int = THREADS
    progress: Progress = QUIET
    guard: Guard = field(default_factory=Guard)
    shard_size: ShardSize = None
    shared: list[Engine] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        require_types(Environment, vars(self))
        require_shard_size(self.shard_size)

    @contextlib.contextmanager
    def engine(self, word: str | None, jobs: int = 1, doing: str = "worked") -> Iterator[Engine | None]:
        """Whoever does tasks (`cluster.open_engine`): the cluster of the command, while one is open, or for the time of
        this block."""
        if self.shared:
            yield self.shared[-1]
            return
        with open_engine(word, jobs, doing) as engine:
            yield engine

    @contextlib.contextmanager
    def sharing(self, word: str | None) -> Iterator[Engine | None]:
        """Keep a cluster open: None where none is asked for."""
        if word is None or self.shared:
            yield self.shared[-1] if self.shared else None
            return

        def begun(engine: Engine) -> None:
            self.progress.start(f"{engine.workers} workers; {engine.dashboard or word}")

        self.progress.start(f"connecting to {word}")
        with open_engine(word, begun=begun) as engine:
            assert engine is not None
            self.shared.append(engine)
            try:
                yield engine
            finally:
                self.shared.pop()


#: The scheme of `Job.dense`.
DENSE = "bf16"


@dataclass(frozen=True)
class Job:
    """A prepared model with everything that was asked for it.

    Attributes:
        sampling: what was said of the samples; `data` are they themselves.
        files: those that the model is read from.
        traces: of the samples that the model was traced on.
        evidence: what the data say of layers, once they were looked at.
        dense: for `auto`, another plan: hardly any loss, and on some machines faster.
        unscaled: the prepared model as it was before channels were scaled, if they were; by `factors`.
        evidence_of: the hash of the data, where there is a file of what they say of layers.
        also: schemes and formats for which the model was prepared besides the recipe's.
        converted: functions of another opset than the model's, as `InlineFunctions` names them; empty: none.
    """

    path: Path
    model: ir.Model
    recipe: Recipe
    target: Target
    plan: Plan
    data: Data | None
    sampling: Sampling
    environment: Environment
    files: tuple[Path, ...] = ()
    traces: dict[str, list[NodeRun]] = field(default_factory=dict, repr=False)
    evidence: Evidence = field(default_factory=dict)
    dense: Plan | None = None
    unscaled: ir.Model | None = None
    factors: Mapping[str, NDArray] = field(default_factory=dict, repr=False)
    evidence_of: str = ""
    also: tuple[str, ...] = ()
    converted: str = ""

    @property
    def knows_data(self) -> bool:
        """Whether data can choose codes: they are here, or what they say of layers is."""
        return self.data is not None or bool(self.evidence_of)

    @property
    def data_hash(self) -> str:
        """Of the data by which codes are chosen; empty where there are none."""
        return self.evidence_of if self.data is None else self.data.hash()

    @property
    def threads(self) -> int:
        return self.environment.threads

    @property
    def progress(self) -> Progress:
        return self.environment.progress

    @property
    def guard(self) -> Guard:
        return self.environment.guard

    @property
    def file_nbytes(self) -> int:
        """Bytes of the files that the model was read from."""
        return sum(file.stat().st_size for file in self.files)

    @property
    def nbytes(self) -> int:
        """Bytes of the model's constants."""
        return write.nbytes_to_write(self.model)

    def trace(self, feed: Feed) -> list[NodeRun]:
        """`work.trace` of the float model on a sample, once for each."""
        digest = hashlib.sha256()
        add_to_hash(digest, feed)
        key = digest.hexdigest()
        if key not in self.traces:
            self.traces[key] = work.trace(self.model, feed)
        return self.traces[key]

    def tell_gaps(self) -> None:
        """Warn of samples that hold NaN or infinity for which the model has nothing else, as far as they were read."""
        if self.data is not None and self.data.gaps.found:
            found = in_words(self.data.gaps, self.data.count, mended_inputs(self.model))
            words = "there and behind it, what is not finite counts for nothing; give samples without it"
            if found:
                warn(f"{self.data.source}: {found}: {words}", UnusedOption)

    def open_there(self) -> Consumer | None:
        """The float model in the runtime that the target is for; None where that is not installed, or onnxruntime.

        Where it does not take the file that the user gave, it gets the prepared model, which has no functions, and
        operators as newer opsets have them.

        Raises:
            BadModel: it takes neither.
        """
        if not self.target.consumer:
            return None
        try:
            return open_in(self.target.consumer, self.path, self.threads)
        except BadModel:
            with scratch() as folder:
                path = Path(folder) / "float.onnx"
                write.save(self.model, path)
                return open_in(self.target.consumer, path, self.threads)

    def rewritten(self, plan: Plan, ranges: Ranges, *, is_final: bool = False) -> ir.Model:
        """A copy of the model in which `plan` is carried out.

        Args:
            is_final: to be written, and not only to be measured.
        """
        plan = reconciled(plan, self.model)
        known = (self.model, plan, ranges, self.recipe, self.target, self.evidence)
        return rewrite(*known, types=lambda: self.types, is_final=is_final)

    def scaled(self, factors: Mapping[str, NDArray]) -> Job:
        """The job with a model in which the channels of values of these names are scaled (`scale_channels`)."""
        places = {place: factors[place.value] for place in channel_places(self.model) if place.value in factors}
        model = scale_channels(self.model, places)
        return replace(self, model=model, traces={}, unscaled=self.model, factors=factors)

    @functools.cached_property
    def types(self) -> Types:
        """Types and shapes of the model's values."""
        return types_of(self.model)


def open_job(
    model: str | Path,
    recipe: Recipe | str = "auto",
    target: str = "ort-cpu",
    data: DataSource | Sampling | None = None,
    environment: Environment | None = None,
    also: Iterable[str] = (),
    evidence_of: str = "",
) -> Job:
    """Steps 1 to 3: load, prepare, plan.

    Args:
        also: further schemes and formats, in which nodes may be planned later.
        evidence_of: the hash of the data, where there is a file of what they say of layers.

    Raises:
        BadModel, BadRecipe, BadData: what is wrong with which of them.
        BadOutput: what is read was to be written.
    """
    sampling = Sampling.of(data)
    environment = environment or Environment()
    asked = Recipe(recipe) if isinstance(recipe, str) else recipe
    place = targets.get(target)
    has_samples = sampling.source is not None
    wanted = asked.resolve(has_data=has_samples, has_evidence=bool(evidence_of), auto=place.auto)
    rounding = sorted(filter(place.rounds_activations, wanted.schemes.difference(STATIC_SCHEMES)))
    if not has_samples and rounding:
        bits = formats.get(place.activations_of(rounding[0])).bits
        raise BadRecipe(f"{rounding[0]} on {target} rounds activations to {bits} bits: give --data, or --scheme fp16")
    environment.progress.start("loading")
    loaded = load_model(model)
    # Now: where float types are changed or constants folded, weights are no longer seen to lie beside the model.
    files = tuple({Path(model): None} | {Path(tensor.path): None for tensor in external_tensors(loaded)})
    environment.guard.reads(sampling.source, *files)
    _require_float(model, loaded, wanted)
    # int8 kernels read float32: the scales of half-precision weights would themselves not fit half precision.
    schemes = wanted.schemes.union(also)
    is_rounding = not schemes.isdisjoint(SPEED_SCHEMES) or any(map(place.rounds_activations, schemes))
    widen = place.widens_half or is_rounding
    opset = max(place.opset_for(scheme) for scheme in schemes)
    refusal = prepare(loaded, opset=opset, widen=widen)
    if place.has_onnxq_ops and all(map(is_of_8_bits, schemes)):
        JoinCells(wanted)(loaded)
    knows_data = sampling.source is not None or bool(evidence_of)
    has_data = knows_data and wanted.algorithm not in algorithms.DATA_FREE
    plan = make_plan(loaded, wanted, place, types_of(loaded), opset_note=refusal, has_data=has_data)
    if not plan.choices:
        default = next((value.name for value in loaded.graph.inputs if value.const_value is not None), None)
        why = "" if default is None else f" ('{default}' is an input, which a caller may replace)"
        raise NothingToDo(f"'{model}' holds no floating-point weights that could be quantized{why}: nothing to do")
    for sentence in unused_options(wanted, loaded, plan, path=model):
        warn(sentence, UnusedOption)
    samples = sampling.open(loaded, model)
    job = Job(Path(model), loaded, wanted, place, plan, samples, sampling, environment, files)
    job = replace(job, evidence_of=evidence_of, also=tuple(sorted(also)), converted=loaded.meta.get(CONVERTED, ""))
    if asked.scheme != "auto" or sampling.source is not None or not place.has_onnxq_ops or wanted.prefer == "size":
        return job
    dense = make_plan(loaded, replace(wanted, scheme=DENSE), place, types_of(loaded), opset_note=refusal)
    return replace(job, dense=dense if dense.those(Method.PACKED) or int8_regions.in_bfloat16(dense) else None)


def _require_float(path: str | Path, model: ir.Model, recipe: Recipe) -> None:
    quantized = is_quantized(model)
    if quantized is not None and not recipe.requantize:
        raise BadModel(
            f"'{path}' is quantized already ({quantized}): start from the float model, "
            "or give --requantize to quantize what is still in float"
        )
