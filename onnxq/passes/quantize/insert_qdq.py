"""Static int8: QuantizeLinear and DequantizeLinear where, and only where, onnxruntime turns them into int8 kernels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import formats, layouts, targets
from onnxq.encoding.lazy import Encoding
from onnxq.formats import FloatArray, Granularity, QuantizedTensor
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.weights import MIN_ELEMENTS, Weight, has_weights, weights_of
from onnxq.passes.quantize import PlanPass, Work
from onnxq.passes.quantize._matmul import AddedBias, added_bias, keep_bias_apart, read_product, to_gemm, weigh_in_codes
from onnxq.passes.quantize._weight_forms import WeightForms, least_scales, owner_of
from onnxq.plan import Method, Plan
from onnxq.planning import int8_regions
from onnxq.planning.rows.int8_attention import int8_attention_at
from onnxq.planning.scales import Scale, Scales, scale_in_file
from onnxq.recipe import Recipe
from onnxq.targets import Target

_WEIGHTED = int8_regions.CONVOLUTIONS | {"MatMul", "Gemm"}


class InsertQDQ(PlanPass):
    """Quantize the activations and weights of STATIC nodes.

    1. Each activation that a static node reads gets one QuantizeLinear/DequantizeLinear pair, shared by its readers.
    2. What a convolution or an operator between two makes is int8, so the pair stands behind it and everybody reads
       that: a graph output's public name goes to the DequantizeLinear. MatMul and Gemm return float.
    3. Weights are stored as int8, one scale an output channel, zero point written out (without it some kernels do not
       fuse), with a DequantizeLinear for each reader; or as int4 behind a Cast to int8, which onnxruntime carries out
       when it loads the model, whereas behind a DequantizeLinear of int4 itself it would compute in float.
    4. The bias becomes int32 with the scale of x times that of w; anything else and onnxruntime silently computes in
       float. A weight scale is raised where the bias would not fit 32 bits.
    5. Gemm's alpha and beta go into weight and bias: other values than 1 are not fused.
    6. MatMul on matrices becomes Gemm, with the constant that is added behind it as its bias: onnxruntime would fuse
       MatMul and Add, of whatever kind, to a Gemm in float. It does that with more dimensions too, where it knows all
       sizes, as in models that were exported with fixed ones; but not if what is added is no vector.
    7. In regions the vector behind a MatMul with more dimensions is a bias, as that of a Gemm; and what a product makes
       is int8 where an operator without weights reads it as codes: everybody reads that then.
    8. An attention is called after its Softmax, whose result becomes codes too (`weigh_in_codes`).

    Args:
        ranks: number of dimensions of the activations, by name, as far as known.
    """

    def __init__(self, plan: Plan, activations: Scales, ranks: Mapping[str, int], recipe: Recipe) -> None:
        super().__init__(plan)
        self.activations, self.ranks, self.recipe = activations, ranks, recipe

    @classmethod
    def of(cls, work: Work) -> Self:
        return cls(work.plan, work.scales, work.ranks, work.recipe)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        chosen = {choice.node for choice in self.plan.those(Method.STATIC)}
        nodes = [node for node in graph.nodes(model) if node.name in chosen and not _is_int8(node)]
        constants = WeightForms(Names(model), self.codes)
        target = targets.get(self.plan.target)
        writer = _Writer(constants, self.activations, target, self.recipe, self.plan)
        # Readers first: what they read is looked up by the names the plan knows, before outputs are renamed.
        regions = int8_regions.has_regions(self.plan)
        read = {node: _Read.of(node, regions) for node in nodes}
        convolved = [node.inputs[0] for node in nodes if node.op_type in int8_regions.CONVOLUTIONS]
        makers = int8_regions.int8_makers(model, self.plan)
        attentions = {node: found for node in nodes if regions and (found := int8_attention_at(node)) is not None}
        gemms: dict[ir.Node, ir.Node] = {}
        for node in nodes:
            if node.graph is None:  # an Add that became a Gemm's bias, which a plan from a file may name too
                continue
            becomes_gemm = node.op_type == "MatMul" and not target.rounds_products and self._on_matrices(node)
            if becomes_gemm:
                gemms[node] = gemm = to_gemm(node, writer.names)
                writer.quantize_inputs(gemm, _Read.of(gemm, regions))
                continue
            bias = added_bias(node) if regions and self._has_rows(node) else None
            if bias is None and node.op_type == "MatMul" and self._may_be_fused_in_float(node):
                keep_bias_apart(node, constants)
            writer.quantize_inputs(node, read[node], bias)
            if node in attentions:
                weigh_in_codes(attentions[node], constants, graph.opset(model))
        for node in (gemms.get(node, node) for node in nodes):
            if node.graph is not None and node.name in makers:
                writer.quantize_outputs(node)
        for value in dict.fromkeys(value for value in convolved if value is not None):
            writer.share_codes(value)
        return ir.passes.PassResult(model, modified=bool(nodes))

    def _on_matrices(self, node: ir.Node) -> bool:
        """Case 6. Not in front of a Transpose, which onnxruntime would fuse with a Gemm without bias, in float."""
        x = node.inputs[0]
        is_matrix = x is not None and self.ranks.get(x.name or "") == 2
        return (
            is_matrix
            and graph.constant(node.inputs[1]) is not None
            and not graph.is_op(graph.only_consumer(node.outputs[0]), "Transpose")
        )

    def _may_be_fused_in_float(self, node: ir.Node) -> bool:
        """Case 6 with more dimensions. Where a size is not known, other fusions take a vector only."""
        x = node.inputs[0]
        return x is not None and self._has_rows(node) and (x.shape is None or x.shape.is_static())

    def _has_rows(self, node: ir.Node) -> bool:
        """Whether it is known to multiply more than a matrix."""
        x = node.inputs[0]
        return x is not None and self.ranks.get(x.name or "", 0) > 2


@dataclass(frozen=True)
class _Read:
    """Where an int8 kernel reads an activation, by what the plan knows of the graph."""

    node: ir.Node
    index: int

    @classmethod
    def of(cls, node: ir.Node, regions: bool) -> list[_Read]:
        return [cls(each, i) for each, i in int8_regions.reads(node, regions) if each.inputs[i] is not None]


def _behind(dequantized: ir.Value) -> ir.Node:
    """The QuantizeLinear of a pair that was made here."""
    dequantize = dequantized.producer()
    quantize = None if dequantize is None or dequantize.inputs[0] is None else dequantize.inputs[0].producer()
    assert quantize is not None
    return quantize


@dataclass(frozen=True)
class _Form:
    """What a weight becomes: readers of one weight that want the same share it."""

    weight: int
    word: str
    granularity: Granularity


class _Writer:
    """Adds the nodes; what it has made already it finds again."""

    def __init__(self, constants: WeightForms, activations: Scales, target: Target, recipe: Recipe, plan: Plan) -> None:
        self.constants, self.target, self.plan = constants, target, plan
        self.names = self.constants.names
        self.activations, self.recipe = activations, recipe
        self._pairs: dict[int, ir.Value] = {}
        self._made: set[ir.Value] = set()
        self._encodings: dict[_Form, Encoding] = {}
        self._scales_seen: dict[_Form, FloatArray] = {}

    def quantize_inputs(self, node: ir.Node, read: list[_Read], added: AddedBias = None) -> None:
        if node.op_type == "Gemm":
            self._plain_gemm(node)
        x = node.inputs[0]
        for each in read:
            value = each.node.inputs[each.index]
            assert value is not None
            if value in self._made:  # two kernels read it through one node
                continue
            made = self._dequantized(value) if graph.constant(value) is None else self._constant_operand(node, value)
            self._made.add(made)
            each.node.replace_input_with(each.index, made)
        least = 1 if int8_regions.has_few_weights(node) else MIN_ELEMENTS
        for weight in weights_of(node, least) if node.op_type in _WEIGHTED else ():
            if weight.role.index == 1 and x is not None and not self._is_in_blocks(node):
                self._quantize_weight(weight, self.activations[x.name or ""], added)

    def _is_in_blocks(self, node: ir.Node) -> bool:
        """Whether `spell_floats` writes the node's weight."""
        choice = self.plan.choices.get(node.name or "")
        return choice is not None and choice.format == self.target.in_blocks

    def quantize_outputs(self, node: ir.Node) -> None:
        if not self.target.floats_read_codes:
            return  # those who compute in integers read the pairs already
        regions = int8_regions.has_regions(self.plan)
        outputs = list(node.outputs) if len(node.outputs) > 1 else [int8_regions.result_of(node, regions)]
        for value in outputs:
            if value.name in self.activations and (self.target.rounds_for_float or id(value) in self._pairs):
                self._publish(value)

    def share_codes(self, value: ir.Value) -> None:
        """Let everybody read the codes of what a convolution reads, if its maker rounds in its own kernel then."""
        maker = int8_regions.producer_of(value)
        if maker is None or maker.op_type not in self.target.rounding or value.is_graph_output():
            return
        scheme, choice = (
            self.recipe.scheme_for(maker.name or "", maker.op_type),
            self.plan.choices.get(maker.name or ""),
        )
        stays = choice is not None and choice.method is not Method.STATIC
        if id(value) in self._pairs and self.target.rounds_activations(scheme) and not stays:
            self._publish(value)

    def _publish(self, value: ir.Value) -> None:
        """Let everybody read the dequantized value instead of `value`."""
        dequantized = self._dequantized(value)
        quantize = _behind(dequantized)  # the model may have had others
        if value.is_graph_output():
            public, value.name = value.name, self.names.fresh(f"{value.name}_float")
            dequantized.name = public
        value.replace_all_uses_with(dequantized, replace_graph_outputs=True)
        quantize.replace_input_with(0, value)

    def _dequantized(self, value: ir.Value) -> ir.Value:
        """`value` behind its QuantizeLinear/DequantizeLinear pair; itself where the model has one in front of it."""
        if id(value) not in self._pairs and scale_in_file(value) == self.activations[value.name or ""]:
            self._pairs[id(value)] = value
        if id(value) not in self._pairs:
            name, scale = value.name or "", self.activations[value.name or ""]
            owner = value.graph
            assert isinstance(owner, ir.Graph)
            parameters = self._parameters(owner, name, scale)
            quantize = ir.node("QuantizeLinear", [value, *parameters], name=self.names.fresh(f"{name}_QuantizeLinear"))
            quantize.outputs[0].name = self.names.fresh(f"{name}_quantized")
            dequantize = ir.node(
                "DequantizeLinear",
                [quantize.outputs[0], *parameters],
                name=self.names.fresh(f"{name}_DequantizeLinear"),
            )
            out = dequantize.outputs[0]
            out.name, out.type, out.shape = self.names.fresh(f"{name}_dequantized"), value.type, value.shape
            producer = value.producer()
            if producer is not None:
                producer.append([quantize, dequantize])
            else:
                owner.insert_before(owner[0], [quantize, dequantize])
            self._pairs[id(value)] = out
        return self._pairs[id(value)]

    def _parameters(self, owner: ir.Graph, name: str, scale: Scale) -> list[ir.Value]:
        # Named after the value that comes first; values of equal scale share them, as same-scale operators require.
        return [
            self.constants.array(owner, f"{name}_scale", np.float32(scale.scale)),
            self.constants.array(
                owner, f"{name}_zero_point", formats.get(scale.format).code_type.type(scale.zero_point)
            ),
        ]

    def _constant_operand(self, node: ir.Node, value: ir.Value) -> ir.Value:
        """A constant that an int8 kernel reads where it could read an activation: in their format, one scale."""
        format = formats.get(next(iter(self.activations.values())).format)
        encoding = self.constants.encoding(value, format, Granularity(), node.op_type)
        parts = {f"_{format.name}": encoding.part(layouts.codes), "_scale": encoding.part(layouts.scales)}
        if format.offset_type is not None:
            parts["_zero_point"] = encoding.part(layouts.zero_points)
        inputs: list[ir.Value | None] = [
            self.constants.value(value, suffix, "operand", part) for suffix, part in parts.items()
        ]
        if format.offset_type is None:
            inputs.append(
                self.constants.array(owner_of(value), f"{format.name}_zero_point", np.zeros((), format.code_type))
            )
        name = self.names.fresh(f"{node.name}_operand")
        return graph.add_node(node, "DequantizeLinear", inputs, name, name)

    def _quantize_weight(self, weight: Weight, x: Scale, added: AddedBias) -> None:
        node, axis = weight.node, self._form(weight).granularity.axis
        bias = node.inputs[2] if node.op_type != "MatMul" and len(node.inputs) > 2 else None
        bias = bias if added is None else added[1]
        tensor = graph.constant(bias) if self.target.has_integer_biases else None
        least = None if tensor is None else least_scales(tensor, x)
        if least is not None and axis is None:
            least = np.asarray(least.max())
        elif least is not None:
            least = least.reshape(_sharing_groups(node), -1).max(axis=0)
        encoding = self._encoding(weight, least)
        # Readers whose biases ask for no larger scales share one copy of the codes.
        # In the subgraph that reads them: onnxruntime looks for what a DequantizeLinear reads in its own graph only.
        key, owner = (axis, id(encoding)), owner_of(node)
        inputs: list[ir.Value | None] = [
            self._codes(weight, key, encoding, owner),
            self.constants.value(weight.value, "_scale", key, encoding.part(layouts.scales), owner),
        ]
        zero = np.dtype(np.int8) if encoding.format.is_integer else encoding.format.code_type
        inputs.append(self.constants.array(owner, "int8_zero_points", np.zeros(encoding.scale_shape, zero)))
        name = self.names.fresh(f"{node.name}_weight")
        along: graph.Attributes = {} if axis is None else {"axis": axis}
        node.replace_input_with(1, graph.add_node(node, "DequantizeLinear", inputs, name, name, along))
        if bias is not None and tensor is not None:
            reader, index = (node, 2) if added is None else (added[0], list(added[0].inputs).index(bias))
            reader.replace_input_with(index, self._quantized_bias(node, bias, tensor, encoding, x))

    def _codes(self, weight: Weight, key: Hashable, encoding: Encoding, owner: ir.Graph) -> ir.Value:
        """The codes as int8, which shorter ones become when the model is loaded."""
        format = encoding.format
        codes = self.constants.value(weight.value, f"_{format.name}", key, encoding.part(layouts.codes), owner)
        if format.bits == 8:
            return codes

        def widened() -> ir.Value:
            name = self.names.fresh(f"{weight.value.name}_int8")
            cast = ir.node("Cast", [codes], {"to": int(ir.DataType.INT8)}, name=name)
            cast.outputs[0].name, cast.outputs[0].dtype = name, ir.DataType.INT8
            owner.insert_before(owner[0], cast)
            return cast.outputs[0]

        return self.constants.once((codes, "widened"), widened)

    def _form(self, weight: Weight) -> _Form:
        """By the node's own choice; one that the plan has no format for is int8, one scale a channel."""
        choice = self.plan.choices.get(weight.node.name or "")
        of_all = choice is not None and choice.granularity == "tensor"
        word = "int8" if choice is None or choice.format is None else choice.format
        return _Form(id(weight.value), word, Granularity(None if of_all else weight.role.channel))

    def _encoding(self, weight: Weight, least: FloatArray | None) -> Encoding:
        """How the weight is encoded; the same for all its readers, unless `least` asks for a larger scale."""
        key = self._form(weight)
        # Products of shorter codes do not saturate.
        stretch = 127 / 63 if self.recipe.reduce_range and formats.get(key.word).bits == 8 else 1.0
        # One reader: decide when the weight is read anyway. Several: look now whether they can share.
        if least is not None and (len(weight.value.uses()) <= 1 or (least > self._own_scales(weight) * stretch).any()):
            return self._new_encoding(weight, stretch, least)
        if key not in self._encodings:
            self._encodings[key] = self._new_encoding(weight, stretch, None)
        return self._encodings[key]

    def _new_encoding(self, weight: Weight, stretch: float, least: FloatArray | None) -> Encoding:
        form = self._form(weight)
        # Outermost codes that are to stay unused must not be taken to make up for others.
        made = self.constants.new_encoding(
            weight.value, formats.get(form.word), form.granularity, weight.node.op_type, by_data=stretch == 1.0
        )
        return replace(made, least_scales=None if least is None else lambda: least, stretch=stretch)

    def _own_scales(self, weight: Weight) -> FloatArray:
        key = self._form(weight)
        if key not in self._scales_seen:
            self._scales_seen[key] = layouts.scales(self._new_encoding(weight, 1.0, None).result())
        return self._scales_seen[key]

    def _quantized_bias(
        self, node: ir.Node, bias: ir.Value, tensor: ir.TensorProtocol, encoding: Encoding, x: Scale
    ) -> ir.Value:
        owner, groups = owner_of(node), _sharing_groups(node)
        zeros = (groups * encoding.scale_shape[0],) if encoding.scale_shape else ()
        # Three dimensions behind a MatMul: onnxruntime makes a Gemm in float of that and a vector.
        before = (1, 1) if node.op_type == "MatMul" else ()

        @layouts.layout(np.int32, lambda w: (*before, *tensor.shape.numpy()))
        def in_steps(q: QuantizedTensor) -> NDArray:
            steps = step_of(q).astype(np.float64) * x.scale
            codes = np.clip(np.rint(tensor.numpy().astype(np.float64) / steps), -(2**31) + 1, 2**31 - 1)
            return codes.reshape(*before, *codes.shape)

        @layouts.layout(np.float32, lambda w: zeros)
        def step(q: QuantizedTensor) -> NDArray:
            return step_of(q) * np.float32(x.scale)

        def step_of(q: QuantizedTensor) -> NDArray:
            scales = layouts.scales(q)
            return np.tile(scales, groups) if scales.ndim else scales

        parts = {"_int32": encoding.part(in_steps), "_scale": encoding.part(step)}
        inputs: list[ir.Value | None] = [
            graph.add_constant(owner, self.names.fresh(f"{bias.name}{suffix}"), part) for suffix, part in parts.items()
        ]
        inputs.append(self.constants.array(owner, "int32_zero_points", np.zeros(zeros, np.int32)))
        name = self.names.fresh(f"{node.name}_bias")
        along: graph.Attributes = {"axis": len(before)} if encoding.scale_shape else {}
        return graph.add_node(node, "DequantizeLinear", inputs, name, name, along)

    def _plain_gemm(self, node: ir.Node) -> None:
        """Move alpha and beta of a Gemm into its constants, and a bias that is none of its constants behind it."""
        product = read_product(node, self.constants, has_half_kernel=False)
        for name in ("alpha", "beta"):
            node.attributes.pop(name, None)
        node.replace_input_with(1, product.weight)
        if product.bias is None or product.bias_is_vector:
            if product.bias is not None:
                node.replace_input_with(2, product.bias)
            return
        node.resize_inputs(2)
        total, out = self.names.fresh(f"{node.name}_add"), node.outputs[0]
        add = ir.node("Add", [out, product.bias], name=total)
        node.append(add)
        total_name, out.name = out.name, self.names.fresh(f"{out.name}_product")
        add.outputs[0].name, add.outputs[0].type, add.outputs[0].shape = total_name, out.type, out.shape
        out.replace_all_uses_with(add.outputs[0], replace_graph_outputs=True)
        add.replace_input_with(0, out)


def _is_int8(node: ir.Node) -> bool:
    """Whether all that the node reads is behind a DequantizeLinear already."""
    read = (value for value in node.inputs if value is not None)
    return not has_weights(node) and any(graph.is_op(value.producer(), "DequantizeLinear") for value in read)


def _sharing_groups(node: ir.Node) -> int:
    """How many groups of outputs share their scales: the axis of a ConvTranspose's weight has those of one group."""
    return graph.attribute_int(node, "group", 1) if graph.is_op(node, "ConvTranspose") else 1
