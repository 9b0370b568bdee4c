"""Where a model will run: a description of what there is, by which a plan is made and carried out.

One file each; the file name is the word on the command line and the name of the class inside.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

from onnxq import formats, own_ops
from onnxq.boundary import typed
from onnxq.errors import BadRecipe
from onnxq.model.weights import Weight
from onnxq.plan import COMPUTING, Choice, Method, in_float
from onnxq.schemes import SCHEMES, STATIC_SCHEMES


class Target:
    """What every file of this folder defines, under its own file name.

    What a target does not say is as here: it computes in float32 with standard operators, and weights are unpacked when
    the model is loaded.
    """

    name: str
    #: Types in which it computes fast; models in others compute in float32, their interface staying as it is.
    float_types: tuple[str, ...] = ("float32",)
    #: Operators that it has a kernel for, by method: int8 with ranges known before, int8 with ranges measured in every
    #: run, and packed weights.
    static: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    packed: tuple[str, ...] = ()
    #: Number formats of the weights that int8 kernels read; shorter codes become int8 when the model is loaded.
    static_weights: tuple[str, ...] = ("int8",)
    #: Number format of weights in blocks that integer products read, where a scheme asks for 4 bits; empty: none.
    in_blocks: str = ""
    #: Domains of the operators that it has besides the standard ones.
    domains: tuple[str, ...] = ()
    #: The runtime in which the model is run, if that is not onnxruntime on a processor: a file of `runtime/consumers`,
    #: or one of onnxruntime's execution providers.
    consumer: str = ""
    #: The target of the same runtime with onnxq's library in it; empty: there is none, or this is it.
    with_library: str = ""
    #: What `auto` stands for, with calibration data and without.
    auto: tuple[str, str] = ("w8a8", "w4a16")
    #: Number format of the activations that int8 kernels read; `int8` has no zero point.
    activations: str = "uint8"
    #: Schemes whose products and convolutions compute in integers too, with activations of 16 bits.
    wide: tuple[str, ...] = ()
    #: Whether biases of integer kernels are integers.
    has_integer_biases: bool = True
    #: Whether what an integer kernel makes is rounded also where only floating-point operators read it.
    rounds_for_float: bool = True
    #: Whether floating-point operators read what was rounded for an integer kernel beside them.
    floats_read_codes: bool = True
    #: Operators that round what they make in the same kernel if nobody reads it as it was: where a convolution reads
    #: codes of it all others do, unless the plan keeps the operator in float.
    rounding: frozenset[str] = frozenset()
    #: Whether products return integers, as convolutions do.
    rounds_products: bool = False
    #: Operators besides those of onnxruntime that compute in integers wherever they stand; those of its own need
    #: neighbours that do.
    rounded: frozenset[str] = frozenset()
    #: Operators without weights that are not worth rounding for between integer kernels, though onnxruntime has them.
    left_in_float: frozenset[str] = frozenset()
    #: Operators whose integer kernels read activations without a zero point other than 0.
    without_zero_points: frozenset[str] = frozenset()
    #: Whether HardSigmoid is written in words that are fused into the kernel before it.
    spells_hard_sigmoids: bool = False
    #: Formats of weights that are written in types for which onnxruntime may have no kernels.
    spelled: tuple[str, ...] = ()
    #: Whether blocks of those lie along the last axis, a Transpose behind what is multiplied the other way.
    blocks_last: bool = False
    #: The shortest weights that it has a form for.
    least_bits: int = 2
    #: Whether an int8 Add may read one value that is not int8: a conversion costs less there than leaving int8.
    one_is_enough: bool = False
    #: Whether its DequantizeLinear has codes of 16 bits in blocks, so that in a model that has them they may stay.
    unpacks_wide_blocks: bool = False
    #: Whether packed tables may be what a node makes of the codes that a product reads; else they are constants.
    shares_tables: bool = True
    #: What carries a plan out, in order: files of `passes/quantize`.
    passes: tuple[str, ...] = ("store_weights",)

    @property
    def widens_half(self) -> bool:
        """Whether models in half precision compute in float32 there."""
        return "float16" not in self.float_types

    @property
    def has_onnxq_ops(self) -> bool:
        """Whether operators of the onnxq domain may be used."""
        return own_ops.DOMAIN in self.domains

    def rounds_activations(self, scheme: str) -> bool:
        """Whether activations become integers whose ranges calibration has to find."""
        return scheme in STATIC_SCHEMES or scheme in self.wide

    def activations_of(self, scheme: str) -> str:
        """The number format of integer activations under this scheme."""
        return "uint16" if scheme in self.wide else self.activations

    def has_kernel(self, method: Method, op: str) -> bool:
        """Whether an operator can be computed so."""
        kernels = {Method.STATIC: self.static, Method.DYNAMIC: self.dynamic, Method.PACKED: self.packed}
        return op in kernels.get(method, ())

    def opset_for(self, scheme: str) -> int:
        """The lowest standard opset in which the scheme can be spelt for this target; 0: any."""
        if scheme in SCHEMES:
            return SCHEMES[scheme].opset
        return formats.get(scheme).opset

    def refusal(self, word: str) -> str:
        """Why no weight can be stored in this number format there; empty if it can."""
        format = formats.get(word)
        if format.has_minimum:
            return "no operator adds the minimum of a block"
        if format.base is not None:
            return "no operator reads scales of 8 bits"
        if format.scale_type == formats.E8M0:
            return "no operator multiplies by powers of two in 8 bits"
        if format.bits not in (2, 4, 8, 16) or format.bits < self.least_bits:
            return f"no operator reads codes of {format.bits} bits"
        return ""

    def stores(self, word: str, block: int | None) -> bool:
        """Whether a weight can be stored in this number format in such blocks, or (None) with one scale a channel."""
        return self.has_onnxq_ops or is_standard(formats.get(word), block)

    def preferred(self, weight: Weight, wish: Choice) -> Choice:
        """The form of the scheme that suits the target best, for a weight that is in float and blocks that the user did
        not name."""
        return wish

    def place(self, weight: Weight, wish: Choice) -> Choice:
        """The nearest thing to `wish` that this target can run for `weight`, with the reason where that differs."""
        if wish.method is Method.HALF and self.widens_half:
            wish = in_float(wish, f"{self.name} computes in float32: unpacked when the model loads")
        if wish.method in COMPUTING and not self.has_kernel(wish.method, wish.op):
            reason = f"{self.name} has no such kernel for {wish.op}: unpacked when the model loads"
            wish = in_float(wish, reason)
        return at_least_four_bits(needs_plain_matmul(weight, wish))


@functools.cache
def names() -> tuple[str, ...]:
    """The words of all targets, from the folder's file names."""
    return tuple(sorted(p.stem.replace("_", "-") for p in Path(__file__).parent.glob("[!_]*.py")))


@typed
@functools.cache
def get(name: str) -> Target:
    """The target called `name`.

    Raises:
        BadRecipe: no file of that name; the message lists those there are.
    """
    if name not in names():
        raise BadRecipe(f"unknown target '{name}'; choose one of {', '.join(names())}")
    stem = name.replace("-", "_")
    found: Target = getattr(importlib.import_module(f"onnxq.targets.{stem}"), stem)()
    return found


def require_format(target: Target, word: str) -> None:
    """Refuse a number format that the target has no form for.

    Raises:
        BadRecipe: with the reason, and the targets that have one.
    """
    reason = target.refusal(word)
    if reason:
        others = [name for name in names() if not get(name).refusal(word)]
        raise BadRecipe(f"{target.name} cannot hold {word} weights: {reason}; give --target {' or '.join(others)}")


def is_standard(format: formats.Format, block: int | None) -> bool:
    """Whether standard operators can unpack weights in such blocks, or (None) with one scale a channel or tensor."""
    if format.scale_type is None:
        return True
    if block is None:
        return format.bits >= 8 and not format.has_minimum
    return format.blocks_are_spelled


def no_table_kernel(wish: Choice) -> Choice:
    """For a Gather on a table whose format no kernel looks up: 8 bits a row."""
    return wish.to(Method.STORED, "int8", None, f"no kernel looks rows up in {wish.format}: 8 bits a row")


def at_least_four_bits(wish: Choice) -> Choice:
    """For weights that standard operators unpack: 8 bits in the place of fewer than 4."""
    if wish.method is Method.STORED and formats.get(wish.format or "").bits < 4:
        return wish.to(Method.STORED, "int8", None, f"{wish.reason or 'nothing unpacks 2 bits'}: 8 bits a channel")
    return wish


def is_plain_matmul(weight: Weight) -> bool:
    """Whether the node multiplies x by a matrix on the right."""
    return weight.node.op_type in ("MatMul", "Gemm") and weight.role.index == 1 and len(weight.shape) == 2


def needs_plain_matmul(weight: Weight, wish: Choice) -> Choice:
    """The wish, if the node is no product, or one of x with a matrix on the right, which kernels multiply."""
    is_product = weight.node.op_type in ("MatMul", "Gemm")
    if not is_product or wish.method not in COMPUTING or is_plain_matmul(weight):
        return wish
    return in_float(wish, "the weight is not a matrix on the right: unpacked when the model loads")
