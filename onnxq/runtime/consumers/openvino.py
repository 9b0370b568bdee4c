"""OpenVINO, on processors."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadModel, MissingRuntime, first_line
from onnxq.runtime.session import Feed

#: Operators of a compiled model that do most of its arithmetic.
_HEAVY = ("Convolution", "Deconvolution", "FullyConnected", "MatMul", "RNNSeq", "RNNCell")


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

    Raises:
        BadModel: OpenVINO does not read or run the model.
        MissingRuntime: it is not installed.
    """

    def __init__(self, model: Path, threads: int) -> None:
        openvino = _module()
        settings = {"PERFORMANCE_HINT": "LATENCY"} | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
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
        for node in self._compiled.get_runtime_model().get_ordered_ops():
            about = node.get_rt_info()
            if about["layerType"].astype(str) in _HEAVY:
                found[about["runtimePrecision"].astype(str)] += 1
        return found


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else first_line(error)
