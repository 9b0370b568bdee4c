"""openvino: OpenVINO's plugin for processors, by itself or as onnxruntime's provider."""

from __future__ import annotations

from onnxq import formats
from onnxq.model import graph
from onnxq.model.weights import Weight, fits_half
from onnxq.plan import Choice, Method, in_float
from onnxq.runtime import known
from onnxq.targets import Target, no_table_kernel

#: Layers whose weights the plugin wants to be floats before it runs. Beside int8 nodes it keeps codes as they are, and
#: refuses the model.
RECURRENT = ("GRU", "LSTM", "RNN")
UNREAD = "OpenVINO's recurrent layers read no codes"


class openvino(Target):
    """Rules of its plugin, version 2026: int8 as QuantizeLinear and DequantizeLinear in front of what computes in
    integers, and nowhere else. Kernels of convolutions and products compute what follows them in floats (sums,
    activation functions, the next rounding) before they store anything, so that a pair behind them would cost time and
    accuracy. Transposed convolutions want activations with a zero point of 0. Weights in blocks of 4 and 8 bits as
    MatMulNBits, which it keeps compressed, and GatherBlockQuantized, whose codes have to be a constant. Plans are made
    by these rules, by the noise that is measured, and by times there where it is installed.
    """

    name = "openvino"
    static = ("Conv", "ConvTranspose", "MatMul", "Gemm")
    packed = ("MatMul", "Gemm", "Gather")
    domains = (graph.MICROSOFT,)
    consumer = "openvino"
    rounds_for_float = False
    floats_read_codes = False
    rounding = frozenset({"Add", "InstanceNormalization"})
    one_is_enough = True
    left_in_float = frozenset({"LeakyRelu", "Mul", "Sigmoid"})
    without_zero_points = frozenset({"ConvTranspose"})
    spells_hard_sigmoids = True
    shares_tables = False
    passes = (
        "insert_qdq",
        "join_sums",
        "replace_matmuls",
        "quantize_gathers",
        "store_weights",
        "convert_to_half",
    )

    def place(self, weight: Weight, wish: Choice) -> Choice:
        if wish.method is Method.DYNAMIC:
            return in_float(wish, "OpenVINO rounds activations of compressed weights itself: 8 bits a channel")
        format = formats.get(wish.format or "")
        if wish.op in RECURRENT and format.scale_type is not None:
            if not fits_half(weight.tensor):
                return Choice(wish.node, wish.op, Method.KEEP, None, None, wish.elements, UNREAD, wish.half)
            return wish.to(Method.STORED, "float16", None, f"{UNREAD}: 16 bits")
        if wish.method is Method.PACKED:
            if format.levels is not None or not format.is_integer or format.bits not in (4, 8):
                reason = f"OpenVINO keeps no {wish.format} weights compressed: unpacked when the model loads"
                return no_table_kernel(wish) if wish.op == "Gather" else in_float(wish, reason)
            if wish.op == "Gather" and format.bits < min(known.GATHER_BITS):
                return wish.to(Method.PACKED, "int8", wish.block, "no kernel looks rows up in 2 bits: 8 bits")
        return super().place(weight, wish)
