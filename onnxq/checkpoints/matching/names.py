"""What a product or table of a model may be called in a checkpoint."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.checkpoints.matching.parameters import Kind, kind_of
from onnxq.model import graph, origin
from onnxq.model.weights import Weight, weights_of

#: What torch's ways to compile and to spread models, PEFT, transformers and who writes a module around a model for its
#: export call the model that they wrap, without underscores at the ends.
_WRAPPERS = {"module", "orig_mod", "fsdp_wrapped_module", "forward_module", "base_model"}
_WRAPPERS |= {"model", "m", "net", "network", "inner", "wrapped"}
#: Words that may stand before the names of one side alone: `base_model.model.model.`
MOST_FIRST = 3
#: Words at the end of a name by which it is found: no module lies as deep.
MOST_LAST = 24
#: Names with one end, of the model times of the checkpoint, whose first words are counted each with each; and how many
#: pairs of first words, the most frequent of these, are counted in what is the same in more of them.
MOST_PAIRS, MOST_KNOWN = 1 << 12, 64
#: What transformers calls the table of a part of a model.
_TABLE = "embed_tokens"
#: What torch's older exporter puts behind the name of a module that is called again.
_AGAIN = re.compile(r"_\d+(?=\.|$)")


def names_of(weight: Weight) -> list[str]:
    """What a product may be called, its own name first: a value may be another's too, whose numbers are the same."""
    names = (weight.node.name, origin.module_of(weight.node), weight.value.name, weight.value.meta.get(origin.ORIGIN))
    return [dotted(name.removesuffix(origin.WEIGHT_TURNED).removesuffix(".weight")) for name in names if name]


def shared_out(known: Sequence[Sequence[str]]) -> list[str | None]:
    """One of the names of each: its first, or one that is the first of none, where several have that first one. The
    module of a tied head has the name of the table, and the codes of the head another one, where these are not its."""
    found = [next(iter(names), None) for names in known]
    owners = Counter(found)
    for i, names in enumerate(known):
        other = next((name for name in names[1:] if not owners[name]), None)
        if other is not None and owners[found[i]] > 1:
            owners[found[i]] -= 1
            owners[other] += 1
            found[i] = other
    return found


def names_in(model: ir.Model) -> set[str]:
    """What parameters are called as parts of modules, be it by the nodes that read them."""
    found: list[str] = []
    for owner in graph.graphs(model):
        found += [
            name
            for name, value in owner.initializers.items()
            if (tensor := graph.constant(value)) is not None
            and tensor.dtype in graph.FLOATS
            and ("." not in name or kind_of(value) is not Kind.FIXED)
        ]
    for node in graph.nodes(model):
        if graph.is_op(node, "Identity") and graph.constant(node.inputs[0]) is not None:
            found.append(node.outputs[0].name or "")
        elif any(weight.role.index == 1 for weight in weights_of(node, least=1)):
            module = origin.module_of(node) or (module_by_name(node) if "/" in (node.name or "") else "")
            found += [f"{module}.weight"] * bool(module)
    return {name for name in found if "." in name and "::" not in name and not name.startswith("/")}


def renaming(own: Collection[str], theirs: Collection[str], *, is_bold: bool = False) -> Renaming:
    """What a name of the model is in the checkpoint where names differ in their first words: `m.fc` is `fc` in a model
    that wraps another one, `fc` is `bert.fc` in one that was taken out of another, and `m.fc` may be `module.fc`.

    Which words is told by most names. They have to begin all names of both sides, or one side lacks them, and all names
    of the model are in the checkpoint then. Where neither side lacks them, one has to tell nothing of the module:
    `m.fc` is `module.fc`, but never is `text_model.fc` `vision_model.fc`. If it is the model's, `m.fc` may be `bert.fc`
    beside a head, too.

    Args:
        is_bold: half of the model's names are enough.
    """
    own, theirs = set(own), set(theirs)
    shared = _shared(theirs)
    if shared:
        own = {name for name in own if not _is_table(name)}
    return Renaming(shared, frozenset(theirs), tuple(_by_beginnings(own, theirs, is_bold=is_bold)))


@dataclass(frozen=True)
class Renaming:
    """What names of a model are in a checkpoint, by what `renaming` found.

    What begins with fewer of the words, as a head beside the body, is called so with fewer of the others.

    Attributes:
        shared: what the table of words is called there; "" if it has a name of its own.
        theirs: all names there.
        pairs: first words here and there, each with a dot at the end, of which the first that fit count.
    """

    shared: str = ""
    theirs: Collection[str] = frozenset()
    pairs: Sequence[tuple[str, str]] = ()

    @functools.cached_property
    def _known(self) -> Collection[str]:
        return frozenset(self.theirs) | {name.rpartition(".")[0] for name in self.theirs} if self.pairs else ()

    def __call__(self, name: str) -> str:
        if self.shared and _is_table(name):
            return self.shared + ".weight" * name.endswith(".weight")
        if name in self._known:
            return name
        made = (new + name.removeprefix(old) for old, new in self.pairs if name.startswith(old))
        return next((each for each in made if each in self._known), name)

    def here(self, name: str) -> list[str]:
        """What a name there may be in the model."""
        made = (old + name.removeprefix(new) for old, new in self.pairs if name.startswith(new))
        return [each for each in dict.fromkeys([name, *made]) if self(each) == name]

    def modules(self, name: str) -> list[str]:
        """What a module may be called there; "" is all of it."""
        own = f"{name}." if name else ""
        found = [own, *([f"{self.shared}."] if self.shared and _is_table(name) else [])]
        for old, new in self.pairs:
            if own.startswith(old):
                found.append(new + own.removeprefix(old))
            elif old.startswith(own) and new.endswith(old.removeprefix(own)):
                found.append(new.removesuffix(old.removeprefix(own)))
        return list(dict.fromkeys(each.removesuffix(".") for each in found))


def _by_beginnings(own: Collection[str], theirs: Collection[str], *, is_bold: bool) -> list[tuple[str, str]]:
    """By the words that most names are told by. Of as many nothing tells which it is, but for an encoder: a decoder has
    what that has, and more."""
    votes = _votes(own, theirs)
    best = sorted(votes, key=lambda pair: (-votes[pair], pair))
    equal = [pair for pair in best if votes[pair] == votes[best[0]]]
    towers = [new.split(".")[-2:-1] for _, new in equal[:3]]
    sizes = [sum(name.startswith(new) for name in theirs) for _, new in equal[:3]]
    if towers == [["decoder"], ["encoder"]] and sizes[0] > sizes[1]:
        best.remove(equal[0])
    elif len(equal) != 1:
        return []
    old, new = best[0]
    told = [pair for pair in best if old.startswith(pair[0]) and new.startswith(pair[1])]
    count, is_one_sided = sum(votes[pair] for pair in told), not old or not new
    of_modules = [name for name in theirs if "." in name]
    begin_all = all(name.startswith(old) for name in own) and all(name.startswith(new) for name in of_modules)
    is_known = is_one_sided or _tells_nothing(old) or _tells_nothing(new)
    is_part = count == len(own) and (is_one_sided or _tells_nothing(old))
    if not ((begin_all and is_known) or is_part or (is_bold and 2 * count >= len(own))):
        return []
    return told


def _tells_nothing(prefix: str) -> bool:
    return _WRAPPERS.issuperset(word.strip("_") for word in prefix.split(".")[:-1])


def _shared(theirs: Collection[str]) -> str:
    """What a checkpoint calls the table of an encoder and a decoder that it has once, as transformers has it; "" if it
    has none."""
    found = [name for name in theirs if f".{name}".endswith(".shared.weight")]
    return found[0].removesuffix(".weight") if len(found) == 1 and not any(map(_is_table, theirs)) else ""


def _is_table(name: str) -> bool:
    return f".{name.removesuffix('.weight')}".endswith(f".{_TABLE}")


def _votes(own: Collection[str], theirs: Collection[str]) -> Counter[tuple[str, str]]:
    """How many names of the model tell of first words of both sides, by these: all else of a name of each is the same.

    What is the same in many names, as `q.weight` is in all layers, tells nothing of first words by itself: there only
    what other names told most often is counted.
    """
    ends: dict[str, tuple[list[str], list[str]]] = {}
    for side, names in enumerate((own, theirs)):
        for name in set(names):
            for first, rest in _parted(name):
                ends.setdefault(rest, ([], []))[side].append(first)
    votes, common = Counter[tuple[str, str]](), list[tuple[set[str], set[str]]]()
    for here, there in ends.values():
        if len(here) * len(there) <= MOST_PAIRS:
            votes.update(pair for pair in itertools.product(here, there) if _differ_before(*pair))
        else:
            common.append(({*here}, {*there}))
    known = sorted(votes, key=lambda pair: (-votes[pair], pair))[:MOST_KNOWN]
    for olds, news in common:
        votes.update((old, new) for old, new in known if old in olds and new in news)
    return votes


def _differ_before(old: str, new: str) -> bool:
    """Whether the last one of each is another, so that they are as few as it takes."""
    return not old or not new or old.split(".")[-2] != new.split(".")[-2]


def _parted(name: str) -> Iterator[tuple[str, str]]:
    """(the first words of a name, the rest), which is a module and its part at least."""
    words = name.split(".")
    for i in range(min(MOST_FIRST, len(words) - 2) + 1):
        yield "".join(f"{word}." for word in words[:i]), ".".join(words[i:])


def ends_of(name: str) -> list[str]:
    """Ends of a dotted name, of two words or more, the longest first: of its last words alone, where it has many."""
    words = name.rsplit(".", MOST_LAST)[-MOST_LAST:]
    return [".".join(words[i:]) for i in range(len(words) - 1)]


def dotted(name: str) -> str:
    """The name of a node as that of a module: `/layers.0/q/MatMul` is `layers.0.q`."""
    for op in ("/MatMul", "/Gemm", "/Gather"):
        name = name.removesuffix(op)
    return name.strip("/").replace("/", ".")


def module_of_reader(node: ir.Node) -> str:
    """The module in which a node stands, by what torch's exporters tell: the newer by metadata, the older by names."""
    module = origin.module_of(node)
    return module if module or "/" not in (node.name or "") else module_by_name(node)


def first_call(module: str, is_there: Callable[[str], bool]) -> str:
    """The module that a checkpoint has: torch's older exporter numbers what is called again, `r_1` for `r`.

    Args:
        is_there: whether the checkpoint has it.
    """
    first = module
    for number in reversed([] if is_there(module) else [*_AGAIN.finditer(module)]):  # a list may be called `cells_0`
        first = first[: number.start()] + first[number.end() :]
        if is_there(first):
            return first
    return module


def module_by_name(node: ir.Node) -> str:
    """The module that torch named a node by: `/layer1/layer1.0/conv1/Conv` is `layer1.0.conv1`."""
    found: list[str] = []
    path = re.sub(rf"/{node.op_type}(_\d+)?$", "", node.name or "")
    for part in path.strip("/").split("/") if path.strip("/") else ():
        if found and part.startswith(f"{found[-1]}."):  # a list of modules stands before its members
            found.pop()
        found.append(part)
    return ".".join(found)
