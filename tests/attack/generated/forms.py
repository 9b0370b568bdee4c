"""What operators take and give, of every domain and version that onnxruntime or ONNX has a schema of."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onnx import TensorProto, defs
from onnxruntime.capi import onnxruntime_pybind11_state as state

DOMAINS = ("", "ai.onnx.ml", "com.microsoft", "ai.onnx.preview", "ai.onnx.preview.training")
#: Element types by the names that schemas have for tensors of them.
ELEMENTS = {
    "float": TensorProto.FLOAT,
    "double": TensorProto.DOUBLE,
    **{name.lower(): kind for name, kind in TensorProto.DataType.items() if name not in ("UNDEFINED", "FLOAT")},
}


@dataclass(frozen=True)
class Formal:
    """An input or an output. `types` are what it may be, as schemas spell it; those of one `group` are the same."""

    group: str
    types: tuple[str, ...]
    is_optional: bool
    is_variadic: bool


@dataclass(frozen=True)
class Form:
    """One version of an operator.

    Attributes:
        least: how many inputs and outputs there must be.
        attributes: type by name, as `AttributeProto` calls it, and whether it must be there.
    """

    name: str
    domain: str
    version: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    least: tuple[int, int]
    attributes: Mapping[str, tuple[str, bool]]


@functools.cache
def forms() -> tuple[Form, ...]:
    """All of them, in one order."""
    found = {(f.domain, f.name, f.version): f for f in map(_form, [*_of_onnx(), *state.get_all_operator_schema()])}
    return tuple(found[key] for key in sorted(found) if key[0] in DOMAINS)


@functools.cache
def named(name: str, opset: int) -> tuple[Form, ...]:
    """The versions of an operator that a model of `opset` has, one of each domain; all of them, if it has none."""
    found = {form.domain: form for form in forms() if form.name == name and (form.domain or form.version <= opset)}
    return tuple(found.values()) or tuple(form for form in forms() if form.name == name)


def element(kind: str) -> int | None:
    """The element type of `tensor(…)`; None of what is no tensor."""
    return ELEMENTS.get(kind[len("tensor(") : -1]) if kind.startswith("tensor(") else None


def _of_onnx() -> Iterable[Any]:
    return defs.get_all_schemas_with_history()


def _form(schema: Any) -> Form:
    allowed = {each.type_param_str: tuple(sorted(each.allowed_type_strs)) for each in schema.type_constraints}
    attributes = {name: (_last(each.type), each.required) for name, each in sorted(schema.attributes.items())}
    inputs, outputs = (tuple(_formal(each, allowed) for each in part) for part in (schema.inputs, schema.outputs))
    least = (schema.min_input, schema.min_output)
    return Form(schema.name, schema.domain, schema.since_version, inputs, outputs, least, attributes)


def _formal(formal: Any, allowed: Mapping[str, tuple[str, ...]]) -> Formal:
    group = formal.typeStr if hasattr(formal, "typeStr") else formal.type_str  # onnxruntime's and ONNX's
    option = _last(formal.option)
    return Formal(group, allowed.get(group, (group,)), option == "OPTIONAL", option == "VARIADIC")


def _last(word: object) -> str:
    found = str(word).rpartition(".")[2].upper()
    return "TYPE_PROTO" if found == "???" else found  # which onnxruntime has no name for
