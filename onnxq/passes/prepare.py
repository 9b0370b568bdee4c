"""Step 2: bring any legal model into the one shape the other steps rely on, without changing what it computes."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import PassManager
from onnx_ir.passes.common import LiftConstantsToInitializersPass, TopologicalSortPass

from onnxq.errors import BadModel, OnnxqError, first_line, root_cause
from onnxq.model.operators import require_inputs
from onnxq.model.origin import HALVES
from onnxq.passes import found, in_order
from onnxq.passes.fixed_states import FixedStates
from onnxq.passes.fold_shapes import FoldShapes
from onnxq.passes.merge_equal import MergeEqual
from onnxq.passes.normalize.change_float_type import ChangeFloatType
from onnxq.passes.normalize.drop_initializer_inputs import DropInitializerInputs
from onnxq.passes.normalize.fold_batchnorm import FoldBatchNorm
from onnxq.passes.normalize.fold_constants import FoldConstants
from onnxq.passes.normalize.forget_exporter import ForgetExporter
from onnxq.passes.normalize.leaky_relus import LeakyRelus
from onnxq.passes.normalize.name_cast_types import NameCastTypes
from onnxq.passes.normalize.plain_turns import PlainTurns
from onnxq.passes.normalize.remove_identities import RemoveIdentities
from onnxq.passes.normalize.remove_unused import RemoveUnused
from onnxq.passes.normalize.tie_transposed import TieTransposed
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.normalize.unpack_heads import UnpackHeads
from onnxq.passes.opsets.inline_functions import InlineFunctions
from onnxq.passes.opsets.raise_opset import RaiseOpset
from onnxq.passes.opsets.replace_withdrawn import ReplaceWithdrawn
from onnxq.passes.restore.read_onnxq_nodes import WidenDense
from onnxq.passes.spelling.hard_sigmoids import HardSigmoids
from onnxq.passes.spelling.plain_einsums import PlainEinsums
from onnxq.passes.spelling.plain_windows import PlainWindows
from onnxq.passes.spelling.whole_slices import WholeSlices
from onnxq.passes.spelling.whole_softmax import WholeSoftmax
from onnxq.runtime import known


def prepare(model: ir.Model, *, opset: int = 0, widen: bool = False, merges: bool = True) -> str:
    """Rewrite `model` in place so that every weight is an initializer, every name is unique and no function is left.

    Functions are inlined because each call has activations, hence ranges, of its own; onnxruntime inlines them too.

    Args:
        opset: raise the standard operators to this version if they are older.
        widen: compute in float32 where the model computes in float16. In the place of bfloat16, which has no kernels on
            processors, it is computed always.
        merges: keep equal constants once; not where they are about to get numbers of their own.

    Returns:
        Why the opset could not be raised, or "".

    Raises:
        BadModel: the model's functions call each other in a circle.
    """
    refusal = ""
    widened = HALVES if widen else (ir.DataType.BFLOAT16,)
    run([InlineFunctions(), DropInitializerInputs(), LiftConstantsToInitializersPass(True, size_limit=0)], model)
    require_inputs(model)
    run([ReplaceWithdrawn(), WidenDense()], model)
    try:
        run([RaiseOpset(max(opset, known.OLDEST_OPSET))], model)
    except BadModel as error:
        refusal = str(error)
    run(
        [
            LiftConstantsToInitializersPass(True, size_limit=0),
            WholeSoftmax(),
            RemoveIdentities(),
            FixedStates(),
            *[ChangeFloatType(half, ir.DataType.FLOAT) for half in widened],
            UniqueNames(),
            NameCastTypes(),
            PlainEinsums(),
            FoldConstants(decodes=False),  # the passes behind it take numbers, and parts of shapes, for constants
            FoldBatchNorm(),
            LeakyRelus(),
            HardSigmoids(),
            PlainWindows(),
            FoldShapes(),
            WholeSlices(),
            FoldConstants(decodes=False),  # what is computed of the numbers that `FoldShapes` found
            UnpackHeads(),
            PlainTurns(),
            *[MergeEqual()] * merges,
            RemoveUnused(),
            TopologicalSortPass(),
            UniqueNames(),
            TieTransposed(),
            ForgetExporter(),
        ],
        model,
    )
    return refusal


def _followers(listed: ir.passes.PassBase) -> list[ir.passes.PassBase]:
    """Passes that no list here names, because they say themselves that they follow this one."""
    _, *words = in_order("normalize", [type(listed).__module__.rpartition(".")[2]])
    return [found("normalize")[word]() for word in words]


def run(passes: list[ir.passes.PassBase], model: ir.Model) -> None:
    """Run passes in order, those that follow one of them behind it.

    Raises:
        BadModel: one of them cannot do it.
    """
    try:
        PassManager([each for listed in passes for each in (listed, *_followers(listed))])(model)
    except ir.passes.PassError as error:
        cause = root_cause(error)
        if isinstance(cause, OnnxqError):
            raise cause from None
        if isinstance(cause, (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError)):
            raise cause from cause.__cause__  # a mistake of a pass
        raise BadModel(f"the graph cannot be prepared: {first_line(cause)}") from error
