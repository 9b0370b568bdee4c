"""Whether what a product or table reads is a parameter as it is: the newer exporter says it (`sources.py`).

The older one calls constants that it folded by what reads them (`onnx::Gemm_14`), and says nothing of what it computed
them from; parameters that a node reads as they are keep their names:

    1. Weights of a Gemm that reads them as torch has them, and biases, are parameters by their own names, or computed.
    2. Of weights that it turned (`onnx::MatMul_14`), numbers may tell: they are a multiple of the parameter, or it
       with the zeros of a mask that is beside it in the checkpoint. Matrices of a single number, or of a single row or
       column, tell nothing; those that are equal to their transpose may have been so before training.
    3. Else only numbers that are the parameter's tell that they are it: others are noted.

Source: torch's jit/passes/onnx/constant_fold.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.checkpoints.matching.folded.sources import Sources
from onnxq.checkpoints.matching.parameters import is_of_older_exporter
from onnxq.checkpoints.matching.put import LIKE
from onnxq.checkpoints.stored import Stored, key
from onnxq.errors import BadModel, listed
from onnxq.formats.kinds import arguments
from onnxq.model import graph
from onnxq.model.origin import ORIGIN
from onnxq.model.weights import Weight
from onnxq.quality import sqnr

#: Of constants that are parameters by their own names, or computed.
_AS_IT_IS = re.compile(r"onnx::(Gemm|Add)_\d+$")
#: Names that a sentence lists.
MOST = 4
#: In dB, of what is a multiple, and by how much more it has to be that than the parameter itself.
MULTIPLE, MEASURE = 40.0, 3.0
#: Numbers of a matrix that are looked at, in whole rows.
LOOKED_AT = 1 << 22


class Parameters:
    """Whether parameters of a checkpoint may go where nodes read constants.

    Args:
        sources: what the newer exporter says.
        is_checked: whether numbers have to be alike where nothing else tells it.
    """

    def __init__(self, tensors: Mapping[str, Any], sources: Sources, *, is_checked: bool) -> None:
        self._tensors, self._sources, self._is_checked = tensors, sources, is_checked
        self._untold = dict[str, None]()
        self._inside: dict[str, list[str]] = {}
        for name in tensors:
            self._inside.setdefault(name.rpartition(".")[0], []).append(name)

    def require_weight(self, weight: Weight, name: str, stored: Stored, *, is_turned: bool) -> None:
        """
        Args:
            name: of the layer, whose weight is `stored`, [out, in].
            is_turned: whether the checkpoint has it as [in, out].

        Raises:
            BadModel: it is not what the node reads.
        """
        node, index, parameter = weight.node, weight.role.index, key(name, "weight")
        reads = "looks up" if node.op_type == "Gather" else "multiplies by"
        self._refuse(parameter, node, reads, self._sources.computed(node, index, parameter))
        called = _called(weight.value)
        if not called or not stored.is_float:
            return
        own, given = weight.tensor.numpy(), stored.floats()
        rows = slice(max(1, LOOKED_AT // given.shape[1]))
        own, given = (own.T if weight.role.contraction == 0 else own)[rows], given[rows]
        lies_turned = (weight.role.contraction == 0) != is_turned and node.op_type != "Gather"
        beside = [each for each in self._inside.get(name, ()) if each != parameter]
        mask = mask_of(own, given, beside, self._tensors)
        how = f"times '{mask}'" if mask else ""
        how = how or computed(called, own, given, is_turned=lies_turned, is_checked=self._is_checked)
        self._refuse(parameter, node, reads, how)
        if lies_turned or _AS_IT_IS.match(called):
            self._doubt(parameter, own, given)

    def require_bias(self, node: ir.Node, index: int, name: str, given: NDArray) -> None:
        """
        Raises:
            BadModel: a tensor of the checkpoint is not what the node adds.
        """
        how, value = self._sources.computed(node, index, name), node.inputs[index]
        tensor = graph.constant(value)
        if value is not None and tensor is not None and (called := _called(value)):
            own = tensor.numpy()
            if own.ndim == 1 and own.shape == given.shape and given.dtype.kind in "fV":
                how = how or computed(called, own, given, is_turned=False, is_checked=self._is_checked)
                self._doubt(name, own, given)
        self._refuse(name, node, "adds", how)

    def _refuse(self, parameter: str, node: ir.Node, reads: str, how: str) -> None:
        if how:
            raise BadModel(
                f"'{parameter}' is not what node '{node.name}' {reads}: the model's exporter computed that from it "
                f"({how}); export the trained model"
            )

    def _doubt(self, parameter: str, own: NDArray, given: NDArray) -> None:
        """Nothing but its numbers tells that something is a parameter as it is."""
        own, given = arguments.numbers(own), arguments.numbers(given)
        if np.ptp(own) and sqnr(own, given) < MULTIPLE:
            self._untold[parameter] = None

    def notes(self) -> list[str]:
        """A sentence about those of which nothing tells it."""
        if not self._untold:
            return []
        they = "it is" if len(self._untold) == 1 else "they are"
        return [
            f"taken as {they}, though torch's older exporter does not say whether the model reads something "
            f"that it computed from {'it' if len(self._untold) == 1 else 'them'}: {listed([*self._untold], MOST)}"
        ]


def _called(value: ir.Value) -> str:
    names = (str(name) for name in (value.name, value.meta.get(ORIGIN)) if name)
    return next((name for name in names if is_of_older_exporter(name)), "")


def computed(name: str, own: NDArray, given: NDArray, *, is_turned: bool, is_checked: bool) -> str:
    """How a constant that was called so was computed from a parameter; "" if nothing tells that it was.

    Args:
        own: the model's numbers.
        given: the checkpoint's, as they lie there.
        is_turned: whether it lies another way than torch has parameters.
        is_checked: whether numbers have to be alike.
    """
    own, given = (arguments.numbers(x).astype(np.float64) for x in (own, given))
    if not (np.isfinite(own).all() and np.isfinite(given).all()):
        return ""
    likeness, power = sqnr(own, given), float((given**2).sum())
    factor = float((own * given).sum()) / power if power else 0.0
    tells = bool(np.ptp(own)) and min(own.shape) > (own.ndim > 1)
    is_multiple = tells and likeness + MEASURE < (fitted := sqnr(own, factor * given))
    if is_multiple and fitted >= MULTIPLE:
        return f"times {factor:.3g}"
    is_known = is_turned or not _AS_IT_IS.match(name) or not is_checked or (likeness >= LIKE and not is_multiple)
    return "" if is_known else "it lost its name"


def mask_of(own: NDArray, given: NDArray, beside: Iterable[str], tensors: Mapping[str, Any]) -> str:
    """The tensor of zeros and ones that a parameter was multiplied by, as zeros of the model tell; "" if none was."""
    zeros = own == 0
    if not zeros.any() or not np.any(given[zeros]):
        return ""
    for name in beside:
        mask = tensors[name]
        if not isinstance(mask, np.ndarray) or mask.ndim != own.ndim or mask.dtype.kind not in "biuf":
            continue
        mask = mask[: len(own)]
        if mask.shape == own.shape and np.array_equal(mask == 0, zeros) and bool((mask[~zeros] == 1).all()):
            return name
    return ""
