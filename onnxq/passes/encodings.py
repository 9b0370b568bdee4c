"""How the weights of a model are encoded, told by the rewritten one."""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from onnxq.encoding.lazy import EncodedTensor, Encoding
from onnxq.model import graph
from onnxq.model.origin import ORIGIN, SOURCE


def encodings(rewritten: ir.Model, weights: Container[str]) -> dict[str, list[Encoding]]:
    """By name of a weight in the prepared model, the different ways in which it is encoded.

    Args:
        weights: names of initializers of the prepared model. They are other ones than in the file where a constant was
            computed, from one of half precision or by a Transpose, say.
    """
    found: dict[str, list[Encoding]] = {}
    for body in graph.graphs(rewritten):
        for name, value in body.initializers.items():
            if isinstance(value.const_value, EncodedTensor):
                names: list[str] = [str(each) for each in (value.meta.get(SOURCE), value.meta.get(ORIGIN)) if each]
                several = found.setdefault(next((each for each in names if each in weights), str(name)), [])
                if all(each is not value.const_value.encoding for each in several):
                    several.append(value.const_value.encoding)
    return found
