"""OpenVINO, on processors."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadModel, MissingRuntime, first_line
from onnxq.runtime.kernel_times import Kernel
from onnxq.runtime.session import Feed

#: Operators of a compiled model that do most of its arithmetic.
_HEAVY = ("Convolution", "Deconvolution", "FullyConnected", "MatMul", "RNNSeq", "RNNCell")
#: Runs that tell the time of each kernel, at least, and at most.
_RUNS = (5, 100)


def _module() -> Any:
    try:
        return importlib.import_module("openvino")
    except ImportError:
        raise MissingRuntime("OpenVINO is not installed: pip install 'onnxq[openvino]'") from None


def version() -> str:
    """Of the package, without the hash of its build."""
    return str(_module().__version__).partition("-")[0]


class Session:
    """A model compiled for the processor, as its users run it: for latency, other settings as they are.

    Args:
        profile: take the time of each kernel, which takes some itself.

    Raises:
        BadModel: OpenVINO does not read or run the model.
        MissingRuntime: it is not installed.
    """

    def __init__(self, model: Path, threads: int, *, profile: bool = False) -> None:
        openvino = _module()
        settings = {"PERFORMANCE_HINT": "LATENCY"} | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
        settings |= {"PERF_COUNT": True} if profile else {}
        try:
            self._compiled = openvino.Core().compile_model(str(model), "CPU", settings)
        except RuntimeError as error:
            raise BadModel(f"OpenVINO refuses the model: {_last_line(error)}") from None
        self._request = self._compiled.create_infer_request()
        self.threads = threads

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs."""
        return [name for value in self._compiled.inputs for name in value.get_names()]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in order."""
        return [output.get_any_name() for output in self._compiled.outputs]

    def run(self, feed: Feed) -> list[NDArray]:
        """The outputs for one sample.

        Raises:
            BadModel: OpenVINO does not run it.
        """
        try:
            found = self._request.infer(feed, share_inputs=True)
        except RuntimeError as error:
            raise BadModel(f"OpenVINO cannot run the model: {_last_line(error)}") from None
        return [np.asarray(found[output]) for output in self._compiled.outputs]

    def precisions(self) -> Counter[str]:
        """How many convolutions and products compute in which type: `u8`, `i8`, `bf16`, `f32` …"""
        found: Counter[str] = Counter()
        for node in self._nodes():
            about = node.get_rt_info()
            if about["layerType"].astype(str) in _HEAVY:
                found[about["runtimePrecision"].astype(str)] += 1
        return found

    def kernels(self, feed: Feed, seconds: float) -> list[Kernel]:
        """The least time of each kernel, of a session that takes times.

        The name is that of the first node of the model whose work it does; what only changes layouts or types does that
        of the kernel that reads it.

        Args:
            seconds: for which it is run.
        """
        least: dict[str, float] = {}
        runs, end = 0, time.perf_counter() + seconds
        while runs < _RUNS[0] or (runs < _RUNS[1] and time.perf_counter() < end):
            self.run(feed)
            runs += 1
            for each in self._request.get_profiling_info():
                taken = each.real_time.total_seconds()
                least[each.node_name] = min(least.get(each.node_name, taken), taken)
        found = []
        for node in self._nodes():
            taken = least.get(node.get_friendly_name(), 0.0)
            if taken:
                names = tuple(_originals(node)) or (node.get_friendly_name(),)
                op = node.get_rt_info()["layerType"].astype(str)
                found.append(Kernel(op, names[0], taken, runs, others=names[1:]))
        return found

    def _nodes(self) -> list[Any]:
        return list(self._compiled.get_runtime_model().get_ordered_ops())


def _originals(node: Any) -> Iterator[str]:
    """Names of the nodes that a kernel does the work of."""
    while True:
        words = node.get_rt_info()["originalLayersNames"].astype(str)
        if words:
            yield from words.split(",")
            return
        readers = [each.get_node() for output in node.outputs() for each in output.get_target_inputs()]
        if len(readers) != 1:
            return
        (node,) = readers


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("-- ") if lines else first_line(error)
