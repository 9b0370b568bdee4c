"""`onnxq convert`: a quantized model for another target, with the codes that it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import own_ops, targets
from onnxq.boundary import bounded
from onnxq.checking.models import Check
from onnxq.checking.rules import kept_rules, unused_level
from onnxq.checking.spelled import as_run
from onnxq.conversion.dequantize import GROWTH
from onnxq.conversion.files import opened, sign
from onnxq.conversion.plan_codes import Codes, plan_codes
from onnxq.conversion.proof import prove
from onnxq.conversion.restore import Read, move_alpha, restore_products, tie_tables, weights_by_node
from onnxq.encoding.lazy import GivenTensor
from onnxq.errors import CheckFailed, NothingToDo
from onnxq.job import Environment
from onnxq.model import graph
from onnxq.model.load import is_quantized, load_model
from onnxq.model.types import infer_types
from onnxq.output import write
from onnxq.passes import prepare
from onnxq.passes.normalize.fold_constants import FoldConstants
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.opsets.raise_opset import RaiseOpset
from onnxq.passes.regions.make_regions import MakeRegions
from onnxq.passes.rewrite import rewrite
from onnxq.plan import Plan
from onnxq.quality import sqnr
from onnxq.recipe import Recipe
from onnxq.runtime import known
from onnxq.summaries.ranges import NO_RANGES
from onnxq.targets import Target

#: dB of the same codes with scales that were rounded to float16.
HALVED = 60


@dataclass(frozen=True)
class Converted:
    """What `convert` did.

    Attributes:
        kept: nodes all of whose weights stand for the same numbers, bit for bit, read back from the written file.
        again: by node whose codes had to be chosen anew, why, and how near the new weight is to the old one, in dB.
        check: of the written model against the other one; None: it was not run, or is too large to be.
    """

    output: Path
    plan: Plan
    kept: tuple[str, ...]
    again: dict[str, tuple[str, float]]
    bytes_before: int
    bytes_after: int
    check: Check | None


@bounded
def convert(
    model: str | Path,
    to: str,
    output: str | Path | None = None,
    *,
    accuracy_level: int = Recipe.accuracy_level,
    check: bool = True,
    environment: Environment | None = None,
) -> Converted:
    """Write the quantized `model`, made by whatever tool, for the target `to`, its weights having the same codes.

    Products and lookups on packed weights are spelled as the target computes them; codes that it has no form for are
    chosen anew. int8 islands, and weights that are unpacked when a model is loaded, are standard operators anyway.

    Args:
        to: a target's word.
        output: [default: the model's name with the target in it]
        accuracy_level: of products: 4 lets kernels round activations to int8, 0 and 1 leave them as they are.
        check: run the written file beside the other one.
        environment: its guard says whether `output` may be replaced.

    Raises:
        BadModel: the model cannot be read.
        BadRecipe: there is no such target or level.
        BadOutput: the output cannot be written.
        NothingToDo: no product or lookup of the model has packed weights, and int8 islands stay what they are.
        CheckFailed: the saved file does not load or run, holds other weights, or has nodes that the target's runtime
            refuses by its documentation.
    """
    target, recipe = targets.get(to), Recipe("w4a16", accuracy_level=accuracy_level)
    environment, path = environment or Environment(), Path(model)
    guard, progress = environment.guard, environment.progress
    destination = Path(output) if output is not None else Path(f"{path.stem}.{to}.onnx")
    write.require_onnx(destination)
    loaded, total = opened(path, destination, environment)
    had_own, is_float = _has_own(loaded), is_quantized(loaded) is None
    restore_products(loaded, keeps_own=target.has_onnxq_ops, wide=not target.unpacks_wide_blocks)
    move_alpha(loaded)
    tie_tables(loaded)
    before = weights_by_node(loaded)
    codes = plan_codes(loaded, target)
    made = rewritten(loaded, codes, target, recipe, is_final=True)
    if not codes.plan.choices and _has_own(made) == had_own:
        raise NothingToDo(
            f"'{path}' has no products or lookups on packed weights, nor int8 islands that are spelled otherwise for "
            f"{to}: there is nothing to convert{_hint(loaded, target, is_float=is_float)}"
        )
    with write.staging(destination) as folder:
        staged = folder / destination.name
        progress.start("writing", write.nbytes_to_write(made))
        nbytes = write.save(made, staged, progress.advance, environment.shard_size)
        kept, again = _compared(staged, before, codes)
        kept_to, proof = kept_rules(staged, to), None
        if check:
            with as_run(staged, lambda: rewritten(loaded, codes, target, recipe)) as (run, said):
                proof = prove(path, loaded, run, environment)
            notes = (*said, *unused_level(codes.plan, accuracy_level))
            proof = proof if proof is None else kept_to.told(proof, *notes)
        guard.publish(staged, destination)
    return Converted(destination, codes.plan, kept, again, total, nbytes, proof)


def rewritten(model: ir.Model, codes: Codes, target: Target, recipe: Recipe, *, is_final: bool = False) -> ir.Model:
    """A restored model with the weights of `codes` as `target` spells them.

    Args:
        is_final: in the types that only the target may have.
    """
    words = {choice.format for choice in codes.plan if choice.format is not None}
    opset = max((target.opset_for(word) for word in words), default=0)
    prepare.run([RaiseOpset(max(opset, known.OLDEST_OPSET)), UniqueNames()], model)
    made = rewrite(model, codes.plan, NO_RANGES, recipe, target, is_final=is_final)
    if target.has_onnxq_ops:
        types = infer_types(made)
        prepare.run([MakeRegions({}, types)], made)
    sign(made, {"target": target.name, "converted": True})
    return made


def _has_own(model: ir.Model) -> bool:
    """Whether there are operators of ours, such as int8 regions, which for other targets are islands again."""
    return any(node.domain == own_ops.DOMAIN for node in graph.nodes(model))


def _has_half_scales(weight: Read, numbers: NDArray) -> bool:
    """Whether scales are rounded to float16 where the weight was, or because of its product where it is now."""
    return numbers.dtype == np.float16 or (isinstance(weight.tensor, GivenTensor) and weight.tensor.half_scales)


def _compared(
    staged: Path, before: Mapping[tuple[str, int], Read], codes: Codes
) -> tuple[tuple[str, ...], dict[str, tuple[str, float]]]:
    """Nodes whose weights in the written file are what they were, and of the others why not, and by how much."""
    written = load_model(staged)
    restore_products(written)
    prepare.run([FoldConstants(GROWTH, spared=codes.plan.choices)], written)
    after = weights_by_node(written, least=1)
    again: dict[str, tuple[str, float]] = {}
    for place, read in before.items():
        name, why = place[0], codes.again.get(place[0])
        if name not in codes.plan.choices:
            continue
        if place not in after:
            raise CheckFailed(f"node '{name}' of the saved file does not read a weight: it was not kept")
        wanted, got = read.numbers(), after[place].numbers()
        # A table of halves may be looked up in float32, and what is found be rounded.
        if np.array_equal(wanted, got.astype(wanted.dtype, copy=False), equal_nan=True):
            continue
        near = sqnr(wanted, got)
        if why is None and near > HALVED and _has_half_scales(read, wanted):
            why = "the same codes, with scales that only one of the files has in float16"
        if why is None:
            raise CheckFailed(f"node '{name}' of the saved file has another weight ({near:.1f} dB): it was not kept")
        again[name] = why, min(near, again.get(name, (why, near))[1])
    return tuple(name for name in codes.plan.choices if name not in again), again


def _hint(model: ir.Model, target: Target, *, is_float: bool) -> str:
    """What does something of a model without codes. Standard operators read weights in bfloat16 as floats."""
    if is_float:
        return f"; 'onnxq quantize -t {target.name}' quantizes a float model"
    each = (value for owner in graph.graphs(model) for value in owner.initializers.values())
    if target.has_onnxq_ops and any(value.dtype is ir.DataType.BFLOAT16 for value in each):
        return f"; of weights in bfloat16 'onnxq quantize -s bf16 -t {target.name} --requantize' makes products again"
    return ""
