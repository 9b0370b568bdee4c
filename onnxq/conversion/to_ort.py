"""`onnxq convert --to ort`: a model in onnxruntime's own format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnxq import own_ops
from onnxq.boundary import bounded
from onnxq.checking.models import Check
from onnxq.conversion.files import opened
from onnxq.conversion.proof import prove
from onnxq.conversion.restore import restore_products
from onnxq.errors import BadModel, BadOutput, CheckFailed, MissingRuntime
from onnxq.files import limits
from onnxq.job import Environment
from onnxq.model import graph
from onnxq.output import write
from onnxq.runtime import native
from onnxq.runtime.own_files.model_files import ORT_SUFFIX
from onnxq.runtime.own_files.ort_format import MOST_BYTES, save_as_ort

#: Least agreement, in dB: the graph is the same, but for convolutions that add up in another order.
AGREES_DB = 40.0


@dataclass(frozen=True)
class InOrtFormat:
    """What `to_ort` did. The check is of the written file against the model; None: it was not run."""

    output: Path
    bytes_before: int
    bytes_after: int
    check: Check | None
    notes: tuple[str, ...]


@bounded
def to_ort(
    model: str | Path,
    output: str | Path | None = None,
    *,
    check: bool = True,
    environment: Environment | None = None,
) -> InOrtFormat:
    """Write a model, quantized or not, as onnxruntime's `.ort`: optimized now, and not when it is loaded.

    Args:
        output: [default: the model's name with .ort]
        check: run the written file beside the model.
        environment: its guard says whether `output` may be replaced.

    Raises:
        BadModel: the model cannot be read, is too large, or onnxruntime cannot write it.
        BadOutput: the output cannot be written.
        MissingRuntime: the model has operators of onnxq's own, and the compiled library was not built.
        CheckFailed: the saved file does not load or run, or computes something else.
    """
    environment, path = environment or Environment(), Path(model)
    destination = Path(output) if output is not None else Path(f"{path.stem}{ORT_SUFFIX}")
    if destination.suffix != ORT_SUFFIX:
        raise BadOutput(f"the output '{destination}' must end in {ORT_SUFFIX}; choose another name with -o")
    loaded, before = opened(path, destination, environment)
    if before > MOST_BYTES:
        raise BadModel(
            f"'{path}' has {limits.in_words(before)}, and a {ORT_SUFFIX} file holds 2 GB: it stays what it is"
        )
    own = [node.op_type for node in graph.nodes(loaded) if node.domain == own_ops.DOMAIN]
    if own and native.path() is None:
        raise MissingRuntime(
            f"'{path}' has operators of onnxq's own, and without its compiled library {ORT_SUFFIX} cannot hold them: "
            "'onnxq convert --to ort-cpu' first, or install a C++ compiler and reinstall onnxq"
        )
    with write.staging(destination) as folder:
        staged = folder / destination.name
        environment.progress.start("optimizing")
        save_as_ort(path, staged, library=bool(own))
        proof = _proof(path, loaded, staged, environment) if check else None
        after = staged.stat().st_size
        environment.guard.publish(staged, destination)
    return InOrtFormat(destination, before, after, proof, tuple(_notes(own, before, after)))


def _proof(path: Path, loaded: ir.Model, staged: Path, environment: Environment) -> Check | None:
    restore_products(loaded)
    proof = prove(path, loaded, staged, environment)
    if proof is not None and proof.is_another(AGREES_DB):
        raise CheckFailed(f"the saved file computes something else than '{path}' ({proof.difference}): it was not kept")
    return proof


def _notes(own: list[str], before: int, after: int) -> list[str]:
    notes = []
    if own:
        notes.append(
            f"it opens only with onnxq's library: {ORT_SUFFIX} has no place for the functions of {len(own)} operators; "
            "'onnxq convert --to ort-cpu' first makes one that opens anywhere"
        )
    if after > 1.5 * before + (1 << 16):
        notes.append("weights that are unpacked when a model is loaded lie unpacked in it")
    return notes
