"""`onnxq doctor`: run all rules on a model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from onnxq.boundary import bounded
from onnxq.checking.models import quantized_kernels
from onnxq.doctor.finding import Diagnosis, Finding
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import without
from onnxq.errors import amount
from onnxq.model.load import is_quantized
from onnxq.progress import QUIET, Progress
from onnxq.runtime import native
from onnxq.runtime.ort.installed import require
from onnxq.samples.sampling import Sampling

#: Float kernels that multiply, as onnxruntime calls them.
_PRODUCTS = (
    "Conv",
    "FusedConv",
    "ConvTranspose",
    "MatMul",
    "FusedMatMul",
    "Gemm",
    "FusedGemm",
    "LSTM",
    "GRU",
    "Attention",
)


@bounded
def examine(
    model: str | Path,
    *,
    target: str = "ort-cpu",
    sampling: Sampling | None = None,
    ignored: tuple[str, ...] = (),
    progress: Progress = QUIET,
) -> Diagnosis:
    """What is wrong with a model, whoever made it.

    Args:
        target: where it is to run.
        sampling: samples, of which one is run; rules about ranges need them. Without, an input is made up.
        ignored: words of rules that are not asked.

    Raises:
        OnnxqError: the model or the data cannot be read, or a word is no rule.
    """
    asked = without(ignored)
    progress.start("reading the model")
    patient = Patient(Path(model), target, sampling)
    progress.start("looking", len(asked), "rules")
    findings: list[Finding] = []
    for rule in asked:
        findings += rule.find(patient)
        progress.advance(1)
    kernels = patient.kernels
    integers = quantized_kernels(kernels)
    products = Counter(kernel.op for kernel in kernels if kernel.op in _PRODUCTS)
    nodes = {kernel.name: kernel.op for kernel in kernels if kernel.op in integers or kernel.op in _PRODUCTS}
    return Diagnosis(
        str(model),
        is_quantized(patient.raw) or _stored(patient),
        _bytes(patient),
        integers,
        dict(sorted(products.items())),
        nodes,
        _machine(patient),
        patient.inputs,
        tuple(sorted(findings, key=lambda finding: (-finding.severity, finding.rule))),
        tuple(dict.fromkeys(patient.notes)),
    )


def _stored(patient: Patient) -> str:
    """That weights are codes, where nothing computes with them."""
    return f"{amount(len(patient.weights), 'weight')} stored as codes" if patient.weights else ""


def _bytes(patient: Patient) -> dict[str, int]:
    """Of constants, by type, the largest part first."""
    stored: Counter[str] = Counter()
    for each in patient.model.graphs():
        for value in each.initializers.values():
            if value.const_value is not None:
                stored[value.const_value.dtype.name.lower()] += value.const_value.nbytes
    return dict(stored.most_common())


def _machine(patient: Patient) -> dict[str, str]:
    machine, library = patient.machine, native.library()
    ours = "none: operators of the onnxq domain run as functions"
    if library is not None:
        ours = f"{native.path()}, kernels of {library.onnxq_isas().decode().split()[0]}"
    return {
        "processor": f"{machine.cpu}, {amount(machine.cores, 'core')}",
        "instructions": machine.isa,
        "onnxruntime": machine.onnxruntime,
        "providers": ", ".join(require().get_available_providers()),
        "onnxq's library": ours,
    }
