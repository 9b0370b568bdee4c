"""What a product or table of a model may be called in a checkpoint."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterator

import onnx_ir as ir

from onnxq.model import graph, origin
from onnxq.model.weights import Weight, weights_of

#: What torch's ways to compile and to spread models, PEFT and transformers call the model that they wrap.
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module", "base_model", "model"}


def names_of(weight: Weight) -> list[str]:
    """What a product may be called, its own name first: a value may be another's too, whose numbers are the same."""
    names = (weight.node.name, origin.module_of(weight.node), weight.value.name, weight.value.meta.get(origin.ORIGIN))
    return [dotted(name.removesuffix(origin.WEIGHT_TURNED).removesuffix(".weight")) for name in names if name]


def names_in(model: ir.Model) -> set[str]:
    """What constants of floats are called as parts of modules, be it by the nodes that read them."""
    found: list[str] = []
    for owner in graph.graphs(model):
        found += [
            name
            for name, value in owner.initializers.items()
            if (tensor := graph.constant(value)) is not None and tensor.dtype in graph.FLOATS
        ]
    for node in graph.nodes(model):
        if graph.is_op(node, "Identity") and graph.constant(node.inputs[0]) is not None:
            found.append(node.outputs[0].name or "")
        elif any(weight.role.index == 1 for weight in weights_of(node, least=1)):
            module = origin.module_of(node) or (module_by_name(node) if "/" in (node.name or "") else "")
            found += [f"{module}.weight"] * bool(module)
    return {name for name in found if "." in name and "::" not in name and not name.startswith("/")}


def renaming(own: Collection[str], theirs: Collection[str]) -> Callable[[str], str]:
    """What a name of the model is in the checkpoint where all names of one of them begin with a word that the other's
    lack: `m.fc` is `fc` in a model that wraps another one, and `fc` is `bert.fc` in one that was taken out of another.

    Of both together only where one of the words tells nothing of the module: `m.fc` is `module.fc`, but never is
    `text_model.fc` `vision_model.fc`.
    """
    own, theirs = set(own), {name for name in theirs if "." in name}
    if not own.isdisjoint(theirs):
        return functools.partial(_begun, "", "")
    words = itertools.product(*(["", *_beginnings(names)] for names in (theirs, own)))
    for new, old in sorted(words, key=lambda each: "".join(each).count(".")):  # the fewest first
        if old and new and not (_tells_nothing(old) or _tells_nothing(new)):
            continue
        if any(new + name.removeprefix(old) in theirs for name in own):
            return functools.partial(_begun, old, new)
    first = min(own, default="")
    prefixes = [name.removesuffix(first) for name in theirs if first and name.endswith(f".{first}")]
    prefix = next((prefix for prefix in prefixes if all(prefix + name in theirs for name in own)), "")
    return functools.partial(_begun, "", prefix)


def _tells_nothing(prefix: str) -> bool:
    return _WRAPPERS.issuperset(prefix.split(".")[:-1])


def _begun(old: str, new: str, name: str) -> str:
    return new + name.removeprefix(old)


def _beginnings(names: Collection[str]) -> Iterator[str]:
    """Words with which all names begin, the fewest first."""
    first, last = (choose((name.split(".")[:-1] for name in names), default=[]) for choose in (min, max))
    for i in range(1, min(len(first), len(last)) + 1):
        if first[:i] != last[:i]:
            return
        yield ".".join(first[:i]) + "."


def dotted(name: str) -> str:
    """The name of a node as that of a module: `/layers.0/q/MatMul` is `layers.0.q`."""
    for op in ("/MatMul", "/Gemm", "/Gather"):
        name = name.removesuffix(op)
    return name.strip("/").replace("/", ".")


def module_by_name(node: ir.Node) -> str:
    """The module that torch named a node by: `/layer1/layer1.0/conv1/Conv` is `layer1.0.conv1`."""
    found: list[str] = []
    for part in (node.name or "").removesuffix(f"/{node.op_type}").strip("/").split("/"):
        if found and part.startswith(f"{found[-1]}."):  # a list of modules stands before its members
            found.pop()
        found.append(part)
    return ".".join(found)
