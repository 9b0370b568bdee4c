"""A graph that grows node by node: each takes what its schema asks for, most often of the type that it asks for."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
import tiny
from attack.generated import values
from attack.generated.forms import Form, Formal, element
from onnx import TensorProto

FLOAT = "tensor(float)"
#: Share of the nodes of which something is wrong: a count of inputs or outputs, one left out, one too many.
WRONG = 0.15


class Growth:
    """The graph, and names of values of float that a next node may read; the newest come first.

    Attributes:
        wrong: share of the nodes of which something is.
        is_inner: nothing is made an input, as of a body there are as many as its node gives.
        opset: whose operators `bodies.py` and `codes.py` take.
        made: name and type of what nodes give, the newest first.
    """

    def __init__(self, graph: onnx.GraphProto, pool: list[str], wrong: float = WRONG) -> None:
        self.graph, self.pool, self.wrong, self.opset = graph, pool, wrong, 17
        self.is_inner = False
        self.made: list[tuple[str, str]] = []

    def add(self, r: Random, form: Form, tag: str) -> onnx.NodeProto:
        """A node of random inputs and attributes; its values begin with `tag`."""
        bound: dict[str, str] = {}
        inputs = self._inputs(r, form, tag, bound)
        outputs = self._outputs(r, form, tag, bound)
        if r.random() < self.wrong:
            _spoil(r, inputs, outputs, self.pool)
        node = onnx.NodeProto(op_type=form.name, domain=form.domain, name=r.choice([tag, tag, ""]), input=inputs)
        node.output.extend(name for name, _ in outputs)
        for name, (kind, is_required) in form.attributes.items():
            if is_required or r.random() < 0.35:
                # Types of standard operators are looked at when a model is read; those of others, by nobody.
                is_wrong = r.random() < (0.01 if form.domain == "" else 0.1)
                kind = r.choice(values.KINDS) if is_wrong else kind
                node.attribute.append(values.attribute(r, name, kind))
        self.take(node, outputs)
        return node

    def take(self, node: onnx.NodeProto, outputs: list[tuple[str, str]]) -> None:
        """A node that is made already."""
        self.graph.node.append(node)
        self.made[:0] = outputs
        self.pool[:0] = 3 * [name for name, kind in outputs if kind == FLOAT and name]

    def constant(self, r: Random, name: str, kind: int, shape: tuple[int, ...]) -> str:
        self.graph.initializer.append(values.tensor(r, name, kind, shape))
        return name

    def _inputs(self, r: Random, form: Form, tag: str, bound: dict[str, str]) -> list[str]:
        most, least = len(form.inputs), min(form.least[0], len(form.inputs))
        names = []
        for i, formal in enumerate(form.inputs[: r.choice([most, least, r.randint(least, most)])]):
            for j in range(r.choice([1, 1, 2, 3]) if formal.is_variadic else 1):
                kind = _bind(r, formal, bound)
                if formal.is_optional and r.random() < 0.2:
                    names.append("")
                elif kind == FLOAT and r.random() < 0.55:
                    names.append(r.choice(self.pool))
                else:
                    names.append(self._new(r, f"{tag}i{i}_{j}", kind))
        return names

    def _outputs(self, r: Random, form: Form, tag: str, bound: dict[str, str]) -> list[tuple[str, str]]:
        most, least = len(form.outputs), max(1, form.least[1])
        made = []
        for i, formal in enumerate(form.outputs[: r.choice([most, min(most, least)])]):
            for j in range(r.choice([1, 2, 3]) if formal.is_variadic else 1):
                made.append((f"{tag}o{i}_{j}", _bind(r, formal, bound)))
        return made

    def _new(self, r: Random, name: str, kind: str) -> str:
        """A constant, an input, or a constant that is an input."""
        of, shape = element(kind), r.choice(values.SHAPES)
        if self.is_inner and of is None:
            return r.choice(self.pool)
        is_constant = of is not None and (self.is_inner or r.random() < 0.75)
        if is_constant and of is not None:
            self.constant(r, name, of, shape)
        if not is_constant or r.random() < 0.05 * (not self.is_inner):
            free = [r.choice(["N", dim]) for dim in shape]
            dims = shape if is_constant else r.choice([shape, None, free])
            self.graph.input.append(values.value(name, kind, of, dims))
        return name


def _bind(r: Random, formal: Formal, bound: dict[str, str]) -> str:
    """The same for all of a group."""
    if formal.group not in bound:
        bound[formal.group] = FLOAT if FLOAT in formal.types and r.random() < 0.75 else r.choice(formal.types)
    return bound[formal.group]


def _spoil(r: Random, inputs: list[str], outputs: list[tuple[str, str]], pool: list[str]) -> None:
    how = r.choice(["fewer", "fewer", "none", "none", "more", "fewer outputs", "no output"])
    if how == "fewer" and inputs:
        del inputs[r.randrange(len(inputs)) :]
    elif how == "none" and inputs:
        inputs[r.randrange(len(inputs))] = ""
    elif how == "more":
        inputs.append(r.choice(pool))
    elif how == "fewer outputs" and outputs:
        del outputs[r.randrange(len(outputs)) :]
    elif outputs:
        outputs[r.randrange(len(outputs))] = ("", outputs[0][1])


def begun(r: Random, kind: int = TensorProto.FLOAT, wrong: float = WRONG) -> Growth:
    """A product or a Conv of the input, which others read."""
    graph = onnx.GraphProto(name="g")
    shape = r.choice([(2, 64), (1, 4, 64), (64, 64), ("N", 64), (1, 4, 8, 8)])
    graph.input.append(onnx.helper.make_tensor_value_info("x", kind, shape))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    graph.initializer.append(onnx.numpy_helper.from_array(tiny.normal(64, 64, dtype=dtype), "w"))
    graph.initializer.append(onnx.numpy_helper.from_array(tiny.normal(4, 4, 3, 3, dtype=dtype), "k"))
    of_images = len(shape) == 4
    graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(64, dtype), "b"))
    first = onnx.helper.make_node("Conv", ["x", "k"], ["h"], name="first", pads=[1] * 4)
    graph.node.append(first if of_images else onnx.helper.make_node("MatMul", ["x", "w"], ["h"], name="first"))
    return Growth(graph, ["h", "h", "x", "w", "k"], wrong)


def end(r: Random, growth: Growth, kind: int = TensorProto.FLOAT) -> None:
    """A product of what was made last, and the graph's outputs."""
    op, *weights = r.choice(["MatMul w", "MatMul w", "Gemm w b", "Conv k", "Add w"]).split()
    growth.graph.node.append(onnx.helper.make_node(op, [growth.pool[0], *weights], ["y"], name="last"))
    growth.graph.output.append(onnx.helper.make_tensor_value_info("y", kind, None))
    for name, made in growth.made[:3]:
        if name and r.random() < 0.5:
            growth.graph.output.append(values.value(name, made, element(made)))
