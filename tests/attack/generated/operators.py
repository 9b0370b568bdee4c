"""Nodes of every operator that there is a schema of, whatever they take: a kind of case for `mutants.py`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import onnx
import tiny
from attack.generated import commands
from attack.generated.forms import Form, forms
from attack.generated.growth import Growth, begun, end
from attack.mutants_data import Case
from onnx import defs, helper


def operators(case: Case, folder: Path) -> list[str]:
    """A node for each seed, between two products."""
    r = Random(case.command)
    growth, chosen = begun(r), []
    for i, seed in enumerate(case.seeds[:3]):
        chosen.append(one(Random(seed), growth, f"n{i}"))
    end(r, growth)
    save_data(folder, growth.graph)
    write(folder, growth.graph, _versions(r, chosen))
    return commands.of(case.command)


def one(r: Random, growth: Growth, tag: str) -> Form:
    """A node of any operator; standard ones are no more than the others."""
    domain = r.choice(["", "", "com.microsoft", "com.microsoft", "ai.onnx.ml", None])
    found = [form for form in forms() if domain is None or form.domain == domain]
    form = r.choice(found)
    growth.add(r, form, tag)
    return form


def _versions(r: Random, chosen: list[Form]) -> dict[str, int]:
    """The first node's own version, most often."""
    newest = defs.onnx_opset_version()
    first = chosen[0]
    own = first.version if first.domain == "" else 17
    found = {"": r.choice([own, own, min(newest, own + 1), max(own, r.randint(1, newest))])}
    for form in chosen:
        found.setdefault(form.domain, form.version)
    return found


def save_data(folder: Path, graph: onnx.GraphProto) -> None:
    """Of the first input, which is the only one of many."""
    tensor = graph.input[0].type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    sizes = [dim.dim_value or 3 for dim in tensor.shape.dim]
    if dtype.kind == "f":
        np.savez(folder / "data.npz", x=tiny.normal(*sizes, dtype=dtype))


def write(
    folder: Path, graph: onnx.GraphProto, versions: dict[str, int], functions: list[onnx.FunctionProto] | None = None
) -> None:
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    made = helper.make_model(graph, opset_imports=imports, functions=functions or [], ir_version=10)
    (folder / "model.onnx").write_bytes(made.SerializeToString())
