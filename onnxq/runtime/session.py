"""onnxruntime, as far as this project needs it: sessions on paths and on models in memory, runs, profiles."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import BadModel, BadOutput, BadRecipe, first_line, root_cause
from onnxq.files import limits, mirror, room, staging
from onnxq.files.ranged import AdmittedTensor
from onnxq.runtime import kernel_times, native, supervisor
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.ort.installed import reason, require
from onnxq.runtime.ort.wrong_rules import wrong_rules
from onnxq.runtime.own_files import model_files

if TYPE_CHECKING:
    import onnxruntime

Feed = dict[str, NDArray]

#: How many threads a session uses unless told otherwise. One: medians of one thread hold still on busy machines.
THREADS = 1
#: onnxruntime begins as many as it is told to.
MOST_THREADS = 1 << 12
#: The execution provider that every onnxruntime has.
PROCESSOR = "CPUExecutionProvider"
_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(bfloat16)": ml_dtypes.bfloat16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint64)": np.uint64,
    "tensor(uint32)": np.uint32,
    "tensor(uint16)": np.uint16,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


@dataclass(frozen=True)
class Input:
    """One input of a model. Dimensions are ints, symbolic names or None; `shape` is None where the rank is free."""

    name: str
    dtype: np.dtype
    shape: tuple[int | str | None, ...] | None


class Session:
    """An onnxruntime session, on the processor unless another provider is named.

    Args:
        model: a path, or a model in memory, whose external tensors may lie in several folders.
        optimize: onnxruntime's graph optimizer on (all levels) or off.
        threads: of one operator; 0 leaves it to onnxruntime.
        profile: record the time of every kernel; `kernels()` ends the recording.
        library: compute the operators of the onnxq domain by the compiled library, where it was built; a path: by the
            library in that file, which is code that runs.
        most_bytes: what a run may take with the constants, packed ones too; 0 is without a bound. A run that
            needs more is refused, where else the process would be killed. Runs are slower: none is to be timed.
        save_optimized: where to leave the optimized graph, which holds for this machine only.
        provider: the execution provider that gets the nodes it takes; the processor gets the others.

    Raises:
        BadModel: onnxruntime refuses the model; the message is its first line.
    """

    #: Whether there is a copy of each weight, arranged for its kernel.
    copies_weights = True

    def __init__(
        self,
        model: str | Path | ir.Model,
        *,
        optimize: bool = True,
        threads: int = THREADS,
        profile: bool = False,
        library: bool | Path = True,
        most_bytes: int = 0,
        save_optimized: Path | None = None,
        provider: str = PROCESSOR,
    ) -> None:
        ort = require()
        what = "the model" if isinstance(model, ir.Model) else f"'{Path(model).name}'"
        supervisor.doing(f"onnxruntime opened or ran {what}")
        self.threads = threads
        options = self._options(threads)
        own = native.path() if library is True else library or None
        try:
            if own is not None:
                options.register_custom_ops_library(str(own))
        except Exception as error:  # see below
            raise BadModel(f"onnxruntime cannot load the library '{own}': {reason(error)}") from None
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
        self._steps: Path | None = None
        recording = self._write_profile(options) if profile else contextlib.nullcontext()
        if save_optimized is not None:
            options.optimized_model_filepath = str(save_optimized)
        self._run_options = _bound(options, most_bytes) if most_bytes else None
        source: str | bytes
        if isinstance(model, ir.Model):
            data = data_folder(model)
            if data is not None:
                options.add_session_config_entry("session.model_external_initializers_file_folder_path", data)
            options.add_session_config_entry("session.load_model_format", "ONNX")
            source = _serialize(model)
        else:
            mirror.ensure_with_data(model)
            source = model_files.source_of(Path(model), options)
        try:
            with recording:
                self._session: onnxruntime.InferenceSession = ort.InferenceSession(
                    source,
                    options,
                    providers=list(dict.fromkeys((provider, PROCESSOR))),
                    disabled_optimizers=wrong_rules(source),
                )
        except Exception as error:  # onnxruntime's exceptions share no base class
            why = reason(error)
            unknown = "not a registered function/op" in why or "No Op registered" in why
            advice = "; --no-check quantizes without running it" if unknown else ""
            raise BadModel(f"onnxruntime refuses the model: {why}{advice}") from None
        self.inputs = tuple(
            Input(i.name, np.dtype(_NUMPY.get(i.type, np.object_)), tuple(i.shape)) for i in self._session.get_inputs()
        )
        self.outputs = tuple(o.name for o in self._session.get_outputs())
        self._require_room()
        interface = (*self._session.get_inputs(), *self._session.get_outputs())
        self._has_bfloat16 = any(value.type == "tensor(bfloat16)" for value in interface)

    def _options(self, threads: int) -> Any:
        if not 0 <= threads <= MOST_THREADS:
            raise BadRecipe(f"{threads} threads cannot be had; give 0 to {MOST_THREADS}")
        options = require().SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        if not self.copies_weights:
            options.add_session_config_entry("session.disable_prepacking", "1")
        return options

    def _write_profile(self, options: Any) -> contextlib.AbstractContextManager[None]:
        """What the session is to be opened in, so that steps of regions are recorded too."""
        options.enable_profiling = True
        scratch = contextlib.ExitStack()
        folder = scratch.enter_context(staging.scratch())
        self._remove_profile = weakref.finalize(self, scratch.close)
        options.profile_file_prefix = os.path.join(folder, "run")
        self._steps = Path(folder) / "steps"
        return kernel_times.written_to(self._steps)

    def _require_room(self) -> None:
        """Refuse inputs of fixed sizes that this machine could not hold."""
        for i in self.inputs:
            nbytes = i.dtype.itemsize * math.prod(dim for dim in i.shape or () if isinstance(dim, int) and dim > 0)
            if nbytes > room.memory():
                shape = [dim if isinstance(dim, int) else "?" for dim in i.shape or ()]
                size = limits.in_words(nbytes)
                raise BadModel(f"input '{i.name}' of shape {shape} takes {size}, more than this machine's memory")

    def run(self, feed: Mapping[str, NDArray], outputs: Sequence[str] | None = None) -> list[NDArray]:
        """Outputs (all, or those named) for one sample.

        Raises:
            BadModel: the run fails.
        """
        try:
            if self._has_bfloat16:
                values = {name: _to_value(x) for name, x in feed.items()}
                return [
                    _from_value(value)
                    for value in self._session.run_with_ort_values(outputs, values, self._run_options)
                ]
            return self._session.run(outputs, feed, self._run_options)
        except Exception as error:  # see above
            raise BadModel(f"onnxruntime cannot run the model: {reason(error)}") from None

    def node_events(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(name, operator, what is told of it) of each run of a kernel since the session was opened. Ends profiling.

        Told are `seconds`, and `input_type_shape` and `output_type_shape` as onnxruntime writes them.
        """
        events = self._events()
        self._remove_profile()
        return events

    def _events(self) -> list[tuple[str, str, dict[str, Any]]]:
        path = Path(self._session.end_profiling())
        try:
            events = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # cut off
            raise BadOutput(
                f"onnxruntime could not write the times of kernels to '{path.parent}': is the disk full? "
                "TMPDIR names another place for temporary files"
            ) from None
        return [
            (
                name.removesuffix("_kernel_time"),
                event["args"]["op_name"],
                event["args"] | {"seconds": event["dur"] * 1e-6},
            )
            for event in events
            if event.get("cat") == "Node" and (name := event.get("name", "")).endswith("_kernel_time")
        ]

    def kernels(self) -> list[Kernel]:
        """Every kernel that ran since the session was opened, with the least time it took. Ends profiling.

        In the place of a region are its steps, and it itself with what it took besides them; the session ends then.
        """
        times: dict[tuple[str, str], list[float]] = {}
        for name, op, details in self._events():
            times.setdefault((op, name), []).append(details["seconds"])
        found = [Kernel(op, kernel_times.original_name(name), min(t), len(t)) for (op, name), t in times.items()]
        if self._steps is not None and any(kernel.op in kernel_times.REGIONS for kernel in found):
            del self._session  # their times are written as they end
            found = kernel_times.with_steps(found, kernel_times.read(self._steps))
        self._remove_profile()
        return found


class MappedSession(Session):
    """One for models larger than memory: weights that lie in a file are read where it is mapped, in pages that the
    system may drop and read again. Not to be timed: kernels arrange weights anew in each run."""

    copies_weights = False


def _bound(options: onnxruntime.SessionOptions, most_bytes: int) -> onnxruntime.RunOptions:
    """Give a session an arena that grows no further; what runs have to say to leave it empty.

    onnxruntime takes the arena that was registered last, and goes on without any check once constants alone exceed
    its limit: so these must be counted in.
    """
    ort = require()
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"max_mem": most_bytes, "arena_extend_strategy": 1}))
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")  # freed with the session
    run = ort.RunOptions()
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return run


def _serialize(model: ir.Model) -> bytes:
    """The model as protobuf; weights that are encoded on the way may raise an error of ours."""
    try:
        return ir.to_proto(model).SerializeToString()
    except ir.serde.SerdeError as error:
        cause = root_cause(error)
        if isinstance(cause, ValueError) and not _is_ours(cause):  # bits that no number of its type has
            raise BadModel(f"a constant of the model cannot be read: {first_line(cause)}") from None
        raise cause from None


def _is_ours(error: BaseException) -> bool:
    """Whether a function of ours was at work: then it is a mistake of ours."""
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).split(".")[0] == "onnxq":
            return True
        trace = trace.tb_next
    return False


def _to_value(x: NDArray) -> onnxruntime.OrtValue:
    """For onnxruntime, which does not know numpy arrays of bfloat16."""
    make = require().OrtValue
    if x.dtype != ml_dtypes.bfloat16:
        return make.ortvalue_from_numpy(x)
    bits = np.ascontiguousarray(x).view(np.uint16)
    return make.ortvalue_from_numpy_with_onnx_type(bits, int(ir.DataType.BFLOAT16))


def _from_value(value: onnxruntime.OrtValue) -> NDArray:
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    shape = value.shape()
    size = math.prod(shape)
    raw = ctypes.string_at(value.data_ptr(), 2 * size) if size else b""
    return np.frombuffer(raw, ml_dtypes.bfloat16).reshape(shape)


def data_folder(model: ir.Model) -> str | None:
    """The folder beside or below which all external initializers lie, those of subgraphs included.

    Those that were given relative to another folder, or are links out of theirs, which onnxruntime does not follow, are
    given relative to this one afterwards.
    """
    values = [v for each in model.graphs() for v in each.initializers.values()]
    external = [(v, t) for v in values if isinstance(t := v.const_value, ir.ExternalTensor)]
    if not external:
        return None
    for _, tensor in external:
        start = tensor.offset or 0
        mirror.ensure(tensor.path, start, start + (tensor.length or tensor.nbytes))
    places = [_place(tensor) for _, tensor in external]
    folder = os.path.commonpath({home for home, _ in places})
    for (value, tensor), (_, path) in zip(external, places, strict=True):
        if os.path.normpath(os.path.join(folder, tensor.location)) != path:
            value.const_value = AdmittedTensor(
                os.path.relpath(path, folder),
                tensor.offset,
                tensor.length,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=tensor.name or "",
                base_dir=folder,
            )
    return folder


def _place(tensor: ir.ExternalTensor) -> tuple[str, str]:
    """The folder that a tensor is given relative to, and its file; of a link out of that, what it leads to."""
    home, path = os.path.abspath(tensor.base_dir), os.path.abspath(tensor.path)
    real = os.path.realpath(path)
    return (home, path) if Path(real).is_relative_to(os.path.realpath(home)) else (os.path.dirname(real), real)
