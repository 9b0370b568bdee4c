"""What decides how long a node's kernel takes, in words: the keys of a machine profile."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxq.model import graph
from onnxq.plan import Choice, Method, Plan
from onnxq.runtime import known
from onnxq.runtime.work import NodeRun
from onnxq.tuning.plan_bench import plan_key

#: Into whose kernels onnxruntime fuses the activation function behind them.
_FUSING = ("Conv", "Gemm", "Add")
_WITHOUT_WORDS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)


def words_of(model: ir.Model, trace: Sequence[NodeRun]) -> dict[str, str]:
    """By node that ran: operator, attributes, types and shapes, and the activation function that is fused into it.

    Of a node that runs several times, in a Loop, the least of its runs counts, as it does for its time.
    """
    runs: dict[str, NodeRun] = {}
    for run in trace:
        if run.node not in runs or run.seconds < runs[run.node].seconds:
            runs[run.node] = run
    nodes = {node.name or "": node for node in graph.nodes(model)}
    return {name: _words(nodes.get(name), run) for name, run in runs.items()}


def form_of(choice: Choice, kernels_of: str, accuracy_level: int) -> str:
    """How a choice computes, in words; by whose kernels (`Plan.kernels_of`). The level is MatMulNBits'."""
    words = [choice.method, choice.format or ("float" if choice.method is Method.FUSED else "int8")]
    if choice.block is not None:
        words.append(f"b{choice.block}")
    if choice.method in (Method.PACKED, Method.FUSED):
        words.append(f"level {accuracy_level}")
    return " ".join([*words, kernels_of])


def hash_of_trace(words: Iterable[str]) -> str:
    """Of a model by what its nodes compute, whatever they are called and whatever the numbers in their weights."""
    return _hash("\n".join(sorted(words)))


def hash_of_plan(plan: Plan, accuracy_level: int) -> str:
    """Of what a plan does, without its reasons."""
    return _hash(repr((plan_key(plan), plan.target, accuracy_level)))


def _words(node: ir.Node | None, run: NodeRun) -> str:
    shapes = f"{' '.join(map(str, run.inputs))} -> {' '.join(map(str, run.outputs))}"
    if node is None:  # made by onnxruntime
        return f"{run.op} {shapes}"
    attributes = [f"{a.name}={a.value}" for _, a in sorted(node.attributes.items()) if a.type not in _WITHOUT_WORDS]
    follower = graph.only_consumer(node.outputs[0])
    is_fused = graph.is_op(node, *_FUSING) and graph.is_op(follower, *known.ABSORBED, *known.FUSED_INTO_CONV)
    op = f"{node.op_type}+{follower.op_type}" if is_fused and follower is not None else node.op_type
    return " ".join([op, *attributes, shapes])


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
