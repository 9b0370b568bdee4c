"""Equal constants are kept once, and the model says what the others were called.

Norms before training are all equal, and some are after it. A checkpoint that is made of the quantized file has them by
all of their names again: it is for models in which they differ, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxq.files import limits, schemas
from onnxq.model import graph

#: Key of a model's metadata: by the name of a constant, those of the others that it stands for.
EQUAL = "onnxq.equal"
#: Numbers of a constant that is compared with others.
MOST = 1 << 16


class MergeEqual(ir.passes.InPlacePass):
    """Let all that read equal constants of a graph, up to `MOST` numbers, read the first of them.

    Of the others the model says the names of those that may be parameters: floats, more than one of them or of a
    module, by no name that an exporter makes up.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        names, modified = equal_names(model), False
        for owner in graph.graphs(model):
            for first, *others in equal_constants(owner):
                keep_one(first, others)
                modified |= bool(others)
                known = names.pop(first.name or "", [])
                for value in others:
                    known += [value.name or ""] * _may_be_parameter(value) + names.pop(value.name or "", [])
                if known:
                    names[first.name or ""] = known
        if modified and names:
            model.metadata_props[EQUAL] = json.dumps(names, ensure_ascii=False, separators=(",", ":"))
        return ir.passes.PassResult(model, modified=modified)


def equal_constants(owner: ir.Graph) -> Iterator[list[ir.Value]]:
    """The constants of a graph that are no outputs of it, those in one list that are equal; each is in one."""
    found: dict[tuple[object, ...], list[ir.Value]] = {}
    for value in owner.initializers.values():
        tensor = graph.constant(value)
        if tensor is not None and tensor.size <= MOST and not value.is_graph_output():
            text = tensor.dtype == ir.DataType.STRING
            raw = repr(tensor.numpy().tolist()).encode() if text else tensor.tobytes()
            key = (tensor.dtype, tuple(tensor.shape.numpy()), hashlib.sha512(raw).digest())
            found.setdefault(key, []).append(value)
    yield from found.values()


def keep_one(kept: ir.Value, others: Iterable[ir.Value]) -> None:
    """Let who reads others of its graph read the one that is kept, and forget these."""
    for other in others:
        other.replace_all_uses_with(kept)
        assert other.graph is not None
        del other.graph.initializers[other.name or ""]


def equal_names(model: ir.Model) -> dict[str, list[str]]:
    """What the metadata of a model say under `EQUAL`; nothing where that is no such table."""
    try:
        return schemas.checked(limits.parse_json(model.metadata_props.get(EQUAL, "{}")), dict[str, list[str]])
    except (ValueError, TypeError):
        return {}


def _may_be_parameter(value: ir.Value) -> bool:
    name, tensor = value.name or "", value.const_value
    assert tensor is not None
    is_made_up = "::" in name or name.startswith("/")
    return tensor.dtype in graph.FLOATS and (tensor.size > 1 or "." in name) and not is_made_up
