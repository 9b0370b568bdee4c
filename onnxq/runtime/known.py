"""What onnxruntime is known to do, as far as it decides what onnxq does. A newer onnxruntime is looked at here first.

Measured on onnxruntime 1.31.1, processors, unless another source is named: docs/fusion.md says how, and
tests/run/test_fusion.py and tests/run/test_passes.py run most of it again with the version that is installed.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

#: The oldest standard operators that it runs (its documentation, Compatibility).
OLDEST_OPSET = 7

# --- int8 by QuantizeLinear and DequantizeLinear. Only what stands between them becomes an integer kernel; everything
# --- else computes in float and pays for the conversions.

#: Fused between the two with any scales.
OWN_SCALE = frozenset({"Add", "Mul", "Sigmoid", "LeakyRelu", "AveragePool", "GlobalAveragePool", "Concat"})
#: Fused only where input and output share the very same scale and zero point.
SAME_SCALE = frozenset(
    {"MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Resize"}
)
#: The same in our own regions only.
MOVED_IN_REGIONS = frozenset({"Pad", "DepthToSpace", "SpaceToDepth"})
#: Vanish into the int8 kernel before them, as the quantized range clips like them; and the kernels that take them.
ABSORBED, ABSORBING = frozenset({"Relu", "Clip"}), frozenset({"Conv", "Add"})
#: The same in our own regions only.
ABSORBING_IN_REGIONS = frozenset({"ConvTranspose", "InstanceNormalization"})
#: Activation functions besides those that are fused into a Conv in float.
FUSED_INTO_CONV = ("Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid")
#: What runs in the place of an operator whose quantization was not fused.
FLOAT_KERNELS = {
    "Conv": ("Conv", "FusedConv"),
    "MatMul": ("MatMul", "Gemm", "FusedMatMul", "FusedGemm"),
    "Gemm": ("Gemm", "FusedGemm"),
    "Add": ("Add",),
    "Mul": ("Mul",),
    "Sigmoid": ("Sigmoid",),
    "LeakyRelu": ("LeakyRelu",),
    "AveragePool": ("AveragePool",),
    "GlobalAveragePool": ("GlobalAveragePool",),
}
#: Whose weights in float it rounds to int8, with one scale for all of them, between codes with one scale and codes
#: (WeightBiasQuantization; 1.31, 1.32): of a MatMul where it makes a Gemm of it and the vector that is added.
ROUNDED_UNASKED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
#: Before them it moves a DequantizeLinear with one scale to behind these operators, and a QuantizeLinear to in front.
CODES_MOVE_PAST = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


def is_wanted(value: ir.Value) -> bool:
    """Whether a node reads it, or who runs the model."""
    return bool(value.uses()) or value.is_graph_output()


def is_fused_in_int8(node: ir.Node) -> bool:
    """Whether an operator of `OWN_SCALE` or `SAME_SCALE` is fused with the attributes and outputs that it has here."""
    if node.domain != "" or node.op_type not in OWN_SCALE | SAME_SCALE:
        return False
    if node.op_type == "Resize" and node.attributes.get_string("mode", "nearest") != "nearest":
        return False
    if node.op_type == "MaxPool" and any(map(is_wanted, node.outputs[1:])):
        return False
    if node.op_type == "Split" and not all(map(is_wanted, node.outputs)):
        return False  # not unless every output is quantized, and what nobody reads is not
    return not is_pool_of_floats(node)


def is_pool_of_floats(node: ir.Node) -> bool:
    """Whether it is an AveragePool that QLinearAveragePool, which it makes of it, is not: that has no dilations, and
    divides by the full window where the other does not."""
    if node.domain != "" or node.op_type != "AveragePool":
        return False
    rounds_up = node.attributes.get("ceil_mode")
    return "dilations" in node.attributes or (rounds_up is not None and bool(rounds_up.as_int()))


# --- Packed weights: operators of the com.microsoft domain (ContribOperators.md).

#: Bits of the codes that MatMulNBits, GatherBlockQuantized and QMoE read.
MATMUL_BITS, GATHER_BITS, EXPERT_BITS = (2, 4, 8), (4, 8), (4, 8)
#: Inputs of MoE that QMoE has a form of on processors: it has no third product.
EXPERT_INPUTS = 6
#: Why a file with MatMulBnb4, the only kernel for its formats, is slow.
SLOW_BNB4 = (
    "slower than float on processors: MatMulBnb4, onnxruntime's only kernel for nf4 and fp4, unpacks the whole "
    "matrix in every run; w4a16 has a fast one"
)

# --- steps of regions.

#: Steps of regions that make codes of floats, and floats of codes.
REGION_CONVERSIONS = ("Region.quantize", "Region.dequantize")
#: Steps that make numbers of bfloat16 of float32, and the other way round.
HALF_CONVERSIONS = ("Bf16Region.read", "Bf16Region.write")

# --- float16.

#: Operators whose float16 form is too narrow (squares and sums overflow at 65504, ranges and sizes lose whole numbers)
#: or that runtimes do not have.
IN_FLOAT = frozenset(
    [
        *("CumSum", "Exp", "GlobalLpPool", "Log", "LpNormalization", "LpPool", "NonMaxSuppression", "Pow", "Range"),
        *("Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd"),
        *("ReduceSum", "ReduceSumSquare", "Resize", "RoiAlign", "Sqrt", "TopK", "Upsample"),
        "MeanVarianceNormalization",  # without a kernel it is computed by ONNX's function, whose constants are float32
    ]
)


def takes_half(node: ir.Node, version: int) -> bool:
    """Whether it can compute in float16, by ONNX's schema of this version and by what runtimes have."""
    if node.domain != "" or node.op_type in IN_FLOAT or _adds_up(node) or crashes_in_half(node):
        return False
    try:
        schema = onnx.defs.get_schema(node.op_type, version)
    except onnx.defs.SchemaError:
        return False
    if any(each.type_str == "tensor(float)" for each in (*schema.inputs, *schema.outputs)):
        return False  # written out, as the scales of Resize are
    floating = [c.allowed_type_strs for c in schema.type_constraints if "tensor(float)" in c.allowed_type_strs]
    return bool(floating) and all("tensor(float16)" in allowed for allowed in floating)


def _adds_up(node: ir.Node) -> bool:
    """Whether it scatters with a reduction, of which there are no float16 kernels."""
    is_scatter = node.op_type in ("ScatterElements", "ScatterND")
    return is_scatter and node.attributes.get_string("reduction", "none") != "none"


def crashes_in_half(node: ir.Node) -> bool:
    """Whether this is a Transpose that is fused into a MatMul behind it, which crashes in float16."""
    if node.op_type != "Transpose" or not any(_is_matmul(use.node) for use in node.outputs[0].uses()):
        return False
    perm = list(node.attributes.get_ints("perm", []))
    last = len(perm) - 1
    return last > 0 and perm == [*range(1, last), 0, last]


def _is_matmul(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "MatMul"
