"""onnxruntime with another execution provider than the processor's: CUDA, TensorRT, OpenVINO, QNN, Core ML, WebGPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from numpy.typing import NDArray

from onnxq.errors import MissingRuntime
from onnxq.runtime import session
from onnxq.runtime.ort import installed
from onnxq.runtime.session import Feed

#: Operators that do most of a model's arithmetic, however they are called once they are fused.
_HEAVY = ("Conv", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "MoE", "Attention")


def _require(provider: str) -> None:
    if provider not in installed.providers():
        raise MissingRuntime(f"the onnxruntime that is installed has no {provider}")


def version(provider: str) -> str:
    """Of the onnxruntime that has the provider."""
    _require(provider)
    return installed.version()


class Session:
    """A model that the provider runs as far as it can, and the processor the rest.

    Raises:
        BadModel: onnxruntime does not read or run the model.
        MissingRuntime: onnxruntime was built without the provider.
    """

    def __init__(self, model: Path, threads: int, provider: str) -> None:
        _require(provider)
        self._model, self._provider, self.threads = model, provider, threads
        self._session = session.Session(model, threads=threads, provider=provider)
        self._last: Feed = {}

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in order."""
        return list(self._session.outputs)

    def run(self, feed: Feed) -> list[NDArray]:
        """The outputs for one sample.

        Raises:
            BadModel: onnxruntime does not run it.
        """
        self._last = feed
        return self._session.run(feed)

    def precisions(self) -> Counter[str]:
        """How many convolutions and products of the last sample ran in which provider, and how many graphs it took."""
        profiled = session.Session(self._model, threads=self.threads, provider=self._provider, profile=True)
        profiled.run(self._last)
        found: Counter[str] = Counter()
        for _, op, details in profiled.node_events():
            where = str(details.get("provider", "")).removesuffix("ExecutionProvider")
            if any(word in op for word in _HEAVY) or where != session.PROCESSOR.removesuffix("ExecutionProvider"):
                found[where] += 1
        return found
