"""Operators that run in int8 only because the convolutions around them do, and which values that makes int8.

An operator between a DequantizeLinear and a QuantizeLinear becomes an integer kernel only if it is in
`known.OWN_SCALE` or, with one scale for its input and output, in `known.SAME_SCALE`. All others compute in float and
pay for the conversions. Where regions are nodes of their own (docs/regions.md) what they compute counts instead: chains
of functions and of changes of shape too, each planned as the node that makes its result, and convolutions whose weights
are too few to be worth storing otherwise: in float they would part a region.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from onnxq import targets
from onnxq.model import graph
from onnxq.model.types import Types
from onnxq.model.weights import has_weights, weights_of
from onnxq.plan import Choice, Method, Plan, in_float
from onnxq.planning import chains, moves
from onnxq.planning.absorbed import behind_product, product_of, product_result
from onnxq.planning.absorbed import final_output as final_output
from onnxq.planning.absorbed import producer_of as producer_of
from onnxq.planning.chains import Chain
from onnxq.planning.counts.growth import growing_in
from onnxq.planning.rows import norms
from onnxq.planning.rows.int8_attention import fits, int8_attention_at, int8_attention_of
from onnxq.planning.rows.rotary import rotary_at, turns_rows
from onnxq.recipe import Recipe
from onnxq.runtime import known

#: Convolutions that make int8; those that are transposed do in regions only.
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
#: That make int8 in regions, where something int8 reads it.
PRODUCTS = frozenset({"MatMul", "Gemm"})
#: Strides of a transposed convolution that regions compute, rows times columns.
MOST_PHASES = 1 << 10
#: Outputs of one below which kernels of regions, which compute blocks of them, are no faster than float: measured.
FEWEST_OUTPUTS = 8
#: Between two values, in regions.
BINARY = frozenset({"Add", "Sub", "Mul"})


def add_to(plan: Plan, model: ir.Model, recipe: Recipe, types: Types) -> Plan:
    """`plan` with a choice for every operator that can run in int8 between static int8 convolutions.

    An operator is taken in only if all it reads comes from int8 kernels and something int8 reads what it makes:
    otherwise it would add conversions instead of saving them.
    """
    target = targets.get(plan.target)
    if target.rounded:
        return plan.replacing(_wherever_they_stand(plan, model, recipe, types))
    regions = has_regions(plan)
    makers = CONVOLUTIONS | PRODUCTS if regions else CONVOLUTIONS
    if not any(choice.op in makers for choice in plan.those(Method.STATIC)):
        return plan
    in_chains = chains.chains(model) if regions else {}
    attentions = {} if not regions else {n: found for n in graph.nodes(model) if (found := int8_attention_at(n))}
    linked = {node for chain in in_chains.values() for node in chain.nodes}
    linked |= {node for found in attentions.values() for node in found.nodes}
    # Rows are turned in float32, in one step of a region.
    turns = [turn for node in graph.nodes(model) if regions and (turn := rotary_at(node)) is not None]
    turned = {node for turn in turns if turns_rows(turn, types) for node in turn.nodes}
    growing = growing_in(model, types)
    candidates = {
        node.name or ""
        for node in graph.nodes(model)
        if node not in turned
        and not touches(node, growing, regions=regions)
        and (
            _joins_region(node, in_chains.get(node.name or ""), node in linked, types)
            or (node in attentions and fits(attentions[node], types))
            if regions
            else known.is_fused_in_int8(node) and node.op_type not in target.left_in_float
        )
        and types.of(node.outputs[0]).dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, None)
        and not _reads_infinity(node)
        and target.rounds_activations(recipe.scheme_for(node.name or "", node.op_type))
    }
    members = _between(model, plan, {c.node for c in plan.those(Method.STATIC)}, candidates)
    extra = (Choice(n.name or "", n.op_type, Method.STATIC) for n in graph.nodes(model) if n.name in members)
    return plan.replacing(extra)


def _wherever_they_stand(plan: Plan, model: ir.Model, recipe: Recipe, types: Types) -> Iterator[Choice]:
    """For targets that are slow, or cannot, in floating point: every operator that they have in integers."""
    target, growing = targets.get(plan.target), growing_in(model, types)
    for node in graph.nodes(model):
        is_known = node.domain == "" and node.op_type in target.rounded
        if not (is_known or known.is_fused_in_int8(node)) or has_weights(node) or _reads_infinity(node):
            continue
        if touches(node, growing, regions=False):  # no range holds them at other sizes
            continue
        maker = producer_of(node.outputs[0])
        if maker is not node and maker is not None and maker.op_type in known.ABSORBING:  # part of the kernel before it
            continue
        read = [types.of(value).dtype for index in activations(node) if (value := node.inputs[index]) is not None]
        if {types.of(node.outputs[0]).dtype, *read} != {ir.DataType.FLOAT}:
            continue
        if target.rounds_activations(recipe.scheme_for(node.name or "", node.op_type)):
            yield Choice(node.name or "", node.op_type, Method.STATIC)


def touches(node: ir.Node, values: Collection[ir.Value], *, regions: bool) -> bool:
    """Whether its int8 kernel would read or make codes of one of these."""
    read = [each.inputs[index] for each, index in reads(node, regions)] if values else []
    return any(value in values for value in (*read, *node.outputs))


def prune(plan: Plan, model: ir.Model) -> Plan:
    """`plan` without the operators that no longer lie between int8 kernels, after some of those went back to float."""
    if targets.get(plan.target).rounded:
        return plan
    static = plan.those(Method.STATIC)
    members = {choice.node for choice in static if has_no_weights(choice)}
    left = _between(model, plan, {choice.node for choice in static} - members, members)
    gone = [choice for choice in static if choice.node in members - left]
    return plan.replacing(Choice(c.node, c.op, Method.KEEP, reason="no longer between int8 operators") for c in gone)


def has_regions(plan: Plan) -> bool:
    """Whether islands of int8 become nodes of the onnxq domain."""
    return plan.regions and targets.get(plan.target).has_onnxq_ops


def in_bfloat16(plan: Plan) -> list[Choice]:
    """Convolutions that compute in regions of bfloat16, where the target has them."""
    return [choice for choice in plan if choice.joins_bf16_region] if targets.get(plan.target).has_onnxq_ops else []


def without_regions(plan: Plan, model: ir.Model, recipe: Recipe, types: Types) -> Plan:
    """`plan` with its islands of int8 in onnxruntime's own kernels, as far as it has them."""
    only_there = [c for c in plan.those(Method.STATIC) if has_no_weights(c) or c.op == "ConvTranspose"]
    back = (in_float(choice, "onnxruntime has no int8 kernel for it") for choice in only_there)
    return add_to(dataclasses.replace(plan, regions=False).replacing(back), model, recipe, types)


def _reads_infinity(node: ir.Node) -> bool:
    """Whether a constant that an int8 kernel would read has a number that no integer stands for, as masks have."""
    tensors = [graph.constant(node.inputs[index]) for index in activations(node) if index < len(node.inputs)]
    arrays = [tensor.numpy() for tensor in tensors if tensor is not None and tensor.dtype in graph.FLOATS]
    return not all(np.isfinite(array.astype(np.float32)).all() for array in arrays)


def beyond_integers(node: ir.Node) -> str:
    """The first number of the constant vector that an int8 kernel would add to what `node` multiplies that no integer
    stands for, as text: NaN or infinite. Empty if all are finite."""
    factor, bias = 1.0, None
    if node.op_type == "MatMul":
        _, bias = graph.added_vector(node) or (node, None)
    elif len(node.inputs) > 2:
        factor, bias = graph.attribute_float(node, "beta", 1.0), node.inputs[2]
    tensor = graph.constant(bias)
    if tensor is None or len(tensor.shape) > 1:
        return ""
    with np.errstate(all="ignore"):
        numbers = (tensor.numpy().astype(np.float32) * np.float32(factor)).reshape(-1)
    odd = numbers[~np.isfinite(numbers)]
    return str(odd[0]) if odd.size else ""


def spread_words(node: ir.Node, rank: int) -> dict[str, int | list[int]] | None:
    """What a step of a region says of a ConvTranspose, of rows and columns; None if regions have no step for it.

    Args:
        rank: of its weight.
    """
    found: dict[str, int | list[int]] = {"group": graph.attribute_int(node, "group", 1)}
    for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0)):
        values = list(node.attributes.get_ints(name, [default] * (rank - 2)))
        if len(values) != rank - 2 or any(not default <= value <= 4096 for value in values):
            return None
        found[name] = [default, *values][-2:]
    pads = list(node.attributes.get_ints("pads", [0] * 2 * (rank - 2)))
    is_open = graph.attribute_string(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID") or "output_shape" in (
        node.attributes
    )
    if rank not in (3, 4) or is_open or len(pads) != 2 * (rank - 2) or any(not 0 <= pad < 1 << 20 for pad in pads):
        return None
    if graph.attribute_string(node, "auto_pad", "NOTSET") == "VALID":
        pads = [0] * len(pads)
    found["pads"] = pads if rank == 4 else [0, pads[0], 0, pads[1]]
    strides = found["strides"]
    assert isinstance(strides, list)
    return found if strides[0] * strides[1] <= MOST_PHASES else None


def has_few_weights(node: ir.Node) -> bool:
    """Whether a convolution has constant weights in float32, and so few that nothing is planned for them."""
    if not graph.is_op(node, "Conv") or has_weights(node):
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    dtypes = [weight.tensor.dtype for weight in weights_of(node, 1)]
    return dtypes == [ir.DataType.FLOAT] and (bias is None or graph.constant(bias) is not None)


def has_no_weights(choice: Choice) -> bool:
    """Whether this static choice is for an operator without weights, or with so few that no format was chosen."""
    return choice.method is Method.STATIC and choice.format is None


def makes_int8(choice: Choice | None, plan: Plan) -> bool:
    """Whether the node's output is int8: convolutions and the operators between them. MatMul and Gemm return float on
    most targets."""
    if choice is None or choice.method is not Method.STATIC:
        return False
    return choice.op not in ("MatMul", "Gemm") or targets.get(plan.target).rounds_products


def int8_makers(model: ir.Model, plan: Plan) -> set[str]:
    """Nodes whose output is int8: in regions products too whose result an operator without weights reads as codes, or
    whose result nobody reads but products and convolutions that are static."""
    found = {choice.node for choice in plan if makes_int8(choice, plan)}
    static = {choice.node: choice for choice in plan.those(Method.STATIC)}
    if not has_regions(plan):
        return found
    for node in graph.nodes(model):
        choice = static.get(node.name or "")
        if choice is None:
            continue
        for value in (each.inputs[index] for each, index in reads(node, True)):
            product = product_of(value)
            if product is None or value is None or product.name not in static:
                continue
            if has_no_weights(choice) or _is_read_by(value, static):
                found.add(product.name or "")
    return found


def _is_read_by(value: ir.Value, nodes: Collection[str]) -> bool:
    """Whether nobody else reads it."""
    return not value.is_graph_output() and all(use.node.name in nodes for use in value.uses())


def result_of(node: ir.Node, regions: bool) -> ir.Value:
    """The value that the int8 kernel of a node with one output makes."""
    attention = int8_attention_at(node) if regions else None
    if attention is not None:
        return attention.result
    result = product_result(node) if regions else node.outputs[0]
    return final_output(node) if result is node.outputs[0] else result


def parts_of(node: ir.Node, regions: bool) -> list[ir.Node]:
    """Other nodes that the int8 kernel of a static node computes in regions: the rest of a chain or an attention, and
    what lies behind a product."""
    attention = int8_attention_at(node) if regions else None
    if attention is not None:
        return [each for each in attention.nodes if each is not node]
    chain = chains.chain_of(node) if regions else None
    if chain is not None:
        return [each for each in chain.nodes if each is not node]
    return behind_product(node) if regions else []


def maker_of(value: ir.Value | None, regions: bool) -> ir.Node | None:
    """The node whose int8 kernel would store `value`."""
    product = product_of(value) if regions else None
    attention = int8_attention_of(value) if regions and product is None else None
    if attention is not None:
        return attention.softmax
    return producer_of(value) if product is None else product


def activations(node: ir.Node) -> list[int]:
    """Indices of the inputs that an int8 kernel for `node` reads as quantized activations."""
    if node.op_type == "MatMul" and not has_weights(node):
        return [0, 1]
    if (
        node.op_type in CONVOLUTIONS | {"MatMul", "Gemm", "Clip", "ReduceMean", "InstanceNormalization"}
        or node.op_type in known.SAME_SCALE | known.MOVED_IN_REGIONS
    ):
        return [0]
    return [index for index, value in enumerate(node.inputs) if value is not None]


def reads(node: ir.Node, regions: bool) -> list[tuple[ir.Node, int]]:
    """Where the int8 kernel of a static node reads activations: node and number of the input.

    Args:
        regions: whether the kernel is a region's, which computes a whole chain for its last node, and a whole attention
            for its Softmax.
    """
    attention = int8_attention_at(node) if regions else None
    if attention is not None:
        return attention.reads
    chain = chains.chain_of(node) if regions else None
    return [(node, index) for index in activations(node)] if chain is None else chain.reads


def _joins_region(node: ir.Node, chain: Chain | None, is_linked: bool, types: Types) -> bool:
    if chain is not None:
        root = types.of(chain.root)
        if not chain.is_function:
            return moves.order_of(chain, root.rank) is not None
        has_channels = root.shape is not None and len(root.shape) in moves.RANKS and root.shape[1] == chain.channels
        return (chain.channels == 1 or has_channels) and chain.keeps_shape(root.rank)
    if is_linked or node.domain != "":
        return False
    rank = types.of(node.outputs[0]).rank
    if node.op_type == "Conv":
        return has_few_weights(node)
    if node.op_type in BINARY:
        values = [value for value in node.inputs if value is not None]
        ranks = {types.of(value).rank for value in values}
        return len(ranks) == 1 and rank in moves.RANKS and all(graph.constant(value) is None for value in values)
    if node.op_type == "Concat":
        return rank in moves.RANKS and all(value is not None and graph.constant(value) is None for value in node.inputs)
    if moves.is_move(node):
        return moves.moves_of(node, rank) is not None
    if node.op_type == "InstanceNormalization":
        return rank in (3, 4) and norms.has_constants(node)
    if node.op_type == "ReduceMean":
        value = node.inputs[0]
        rank = None if value is None else types.of(value).rank
        return value is not None and moves.is_over_pixels(node, rank) and not (rank == 3 and _normalizes(node, value))
    return node.op_type in ("MaxPool", "AveragePool", "GlobalAveragePool") and known.is_fused_in_int8(node)


def _normalizes(mean: ir.Node, value: ir.Value) -> bool:
    """Whether a mean is one of squares, or is taken off what it is the mean of, as in normalizations of rows: what
    little is left of large numbers would be rounded in steps of these."""
    readers = [use.node for use in mean.outputs[0].uses()]
    if any(graph.is_op(reader, "Sub") and value in reader.inputs for reader in readers):
        return True
    maker = value.producer()
    is_square = graph.is_op(maker, "Mul") and maker is not None and maker.inputs[0] is maker.inputs[1]
    return is_square or graph.is_op(maker, "Pow")


def _between(model: ir.Model, plan: Plan, static: set[str], candidates: set[str]) -> set[str]:
    """The largest subset of `candidates` of which each reads only int8 values and is read by an int8 operator.

    Where regions are nodes of their own, and on other targets that say so, an Add may read one value that is not int8:
    a conversion costs less than leaving a region; not behind products. A convolution with few weights may read what is
    not int8, or make what nothing int8 reads.

    Args:
        static: further nodes that are int8.
    """
    regions = has_regions(plan)
    makers = CONVOLUTIONS | PRODUCTS if regions else CONVOLUTIONS
    convolutions = {c.node for c in plan.those(Method.STATIC) if c.op in makers and not has_no_weights(c)}
    members = set(candidates)
    by_name = {node.name: node for node in graph.nodes(model) if node.name in candidates}
    read = {name: reads(node, regions) for name, node in by_name.items()}
    values = {name: [each.inputs[index] for each, index in found] for name, found in read.items()}
    while True:
        first = {each.name or "" for name in members if by_name[name].op_type == "Softmax" for each, _ in read[name]}
        int8, readers = convolutions | members, static | members | first
        lost = {name for name in members if not _is_between(by_name[name], values[name], int8, readers, plan)}
        if not lost:
            return members
        members -= lost


def _is_between(node: ir.Node, values: list[ir.Value | None], int8: set[str], readers: set[str], plan: Plan) -> bool:
    made = [value for value in dict.fromkeys(values) if graph.constant(value) is None]
    regions = has_regions(plan)
    others = [value for value in made if (p := maker_of(value, regions)) is None or p.name not in int8]
    one_is_enough = node.op_type == "Add" and targets.get(plan.target).one_is_enough
    # What residuals of transformers add up, with its outliers, stays float from the first block to the last.
    one_is_enough = one_is_enough and not any(regions and product_of(value) for value in made)
    if node.op_type == "Conv" and not others:
        return True  # what it makes is smaller, or no larger, than what would have to be converted
    if node.op_type == "Softmax":  # of an attention, which is worth the conversions
        return _leads_to(result_of(node, regions), readers)
    if node.op_type != "Conv" and (len(others) == len(made) or (others and not one_is_enough)):
        return False
    outputs = [final_output(node)] if len(node.outputs) == 1 else list(node.outputs)
    if regions:
        return any(_leads_to(output, readers) for output in outputs)
    return any(use.node.name in readers for output in outputs for use in output.uses())


def _leads_to(root: ir.Value, names: set[str]) -> bool:
    """Whether one of these nodes reads `root`, or makes the result of a chain that does."""
    return any(_is_within(use.node, root, names) for use in root.uses())


def _is_within(node: ir.Node, root: ir.Value, names: set[str]) -> bool:
    links = chains.FUNCTIONS | chains.ORDERS
    for _ in range(chains.LONGEST):
        if node.name in names:
            return True
        read = [value for value in node.inputs if value is not root and graph.constant(value) is None]
        makers = [value.producer() for value in read if value is not None]
        followers = {use.node for use in node.outputs[0].uses()} if node.outputs else set()
        is_link = node.op_type in links and all(each is not None and each.op_type in links for each in makers)
        if not is_link or len(followers) != 1:
            return False
        (node,) = followers
    return False
