"""Operators between DequantizeLinear and QuantizeLinear that did not become integer kernels."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxq.doctor.finding import Finding, Severity
from onnxq.doctor.pairs import code_type, codes_of, dequantizer, quantizers, reads_codes, result_of
from onnxq.doctor.patient import Patient
from onnxq.doctor.rule import Rule
from onnxq.model import graph
from onnxq.passes.fusing.part_gemms import PartGemms, unrounded
from onnxq.runtime import known

_WEIGHED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
#: Whose integer kernels return floats too, so that none has to be rounded behind them.
_RETURN_FLOATS = ("MatMul", "Gemm")

_OF_INT8 = (
    "its activations are int8, of which onnxruntime makes uint8 where a single node reads them, so that input and "
    "output may differ in type; uint8 activations are fused"
)
_AS_UINT8 = (
    "quantize it again with uint8 activations (of onnxruntime's quantize_static: activation_type=QuantType.QUInt8; "
    "onnxq quantize -s w8a8 takes them anyway)"
)
_AS_MAX = "--fix spells it as Max and Min, which compute the same and leave the Gemm alone"


class IslandsInFloat(Rule):
    """Told by the kernels that ran: the operator computes in float and pays for the conversions around it.

    Of convolutions and products that is a warning; operators without weights between int8 ones often cannot be helped.
    """

    severity = Severity.WARNING
    what = "a node between DequantizeLinear and QuantizeLinear computes in float"
    why = "it is no faster than in float, and the conversions around it take time of their own"
    fix = "leave it out of quantization, or spell it as docs/fusion.md says"
    mends = True

    def find(self, patient: Patient) -> Iterator[Finding]:
        ran = {(kernel.name, kernel.op) for kernel in patient.kernels}
        for node in patient.nodes:
            if not reads_codes(node) or not _reads_weights_as_codes(node):
                continue
            if node.op_type not in _RETURN_FLOATS and not quantizers(result_of(node)):
                continue
            floats = known.FLOAT_KERNELS.get(node.op_type, (node.op_type,))
            if any((node.name, op) in ran for op in floats):
                severity = self.severity if node.op_type in _WEIGHED else Severity.NOTE
                why = _why(node)
                mends = unrounded(node) is not None
                fix = _AS_UINT8 if why == _OF_INT8 else _AS_MAX if mends else ""
                yield self.at(node.name or "", f"{node.op_type} ran in float: {why}", fix, severity, mends=mends)

    def mend(self, model: ir.Model) -> bool:
        return bool(PartGemms()(model).modified)


def _reads_weights_as_codes(node: ir.Node) -> bool:
    """Whether the weight of a convolution or product is codes; that of others does not matter."""
    if node.op_type not in _WEIGHED:
        return True
    before = [graph.producer(value) for value in node.inputs[:2]]
    return all(graph.is_op(each, "DequantizeLinear") for each in before)


def _why(node: ir.Node) -> str:
    """What keeps onnxruntime from fusing it, as far as that is known."""
    if node.op_type == "Gemm":
        for name in ("alpha", "beta"):
            if graph.attribute_float(node, name, 1.0) != 1.0:
                return f"its {name} is not 1"
    if node.op_type == "BatchNormalization":
        return (
            "no integer kernel does that; fold it into the convolution before you quantize (onnxruntime's "
            "quant_pre_process does, and so does onnxq)"
        )
    if node.op_type not in ("Conv", "MatMul", "Gemm") and not known.is_fused_in_int8(node):
        return "onnxruntime has no integer kernel for it, or none with these attributes"
    if node.op_type == "MatMul" and graph.added_vector(node):
        return (
            "onnxruntime fuses it with the Add behind it to a Gemm in float, as it does where it knows all sizes; give "
            "the vector that is added three dimensions, [1, 1, N], or export the model with an axis that is not fixed"
        )
    if (clip := unrounded(node)) is not None:
        return (
            f"onnxruntime fuses it with the {clip.op_type} behind it, whose result is not rounded, to a Gemm in float"
        )
    x = dequantizer(node.inputs[0])
    if x is not None and code_type(x) == ir.DataType.INT8:
        return _OF_INT8
    if node.op_type in ("Conv", "MatMul", "Gemm"):
        return "its scales, zero points or types are not those that its kernel takes"
    if node.op_type in known.SAME_SCALE:
        codes = [codes_of(each) for each in (*(quantizers(result_of(node)) or ()), *([x] if x is not None else []))]
        if len({(each.scale, each.zero) for each in codes if each is not None}) > 1:
            return "its input and output have different scales"
    return "onnxruntime did not fuse it"
