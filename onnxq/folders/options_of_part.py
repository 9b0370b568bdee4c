"""From the options of a folder, those of one part: the rules and the data that are for it."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from onnxq import algorithms
from onnxq.errors import BadData
from onnxq.recipe import KEEP, Recipe, Rule
from onnxq.samples.sampling import Sampling
from onnxq.samples.source import DataSource
from onnxq.schemes import SCHEMES

#: Samples of a folder: by part, or a folder of them, or for a folder of a single part whatever a model takes.
FolderData = DataSource | Mapping[str, DataSource]


def recipe_of(part: str, parts: Sequence[str], recipe: Recipe, has_data: bool) -> Recipe:
    """The recipe for one part: patterns `PART/NODES` are for the nodes of the parts they name, others for all.

    A part without data takes `w8a8-dynamic` where the recipe, or a rule, asks for `w8a8`, and codes chosen by the
    weights alone where it asks for an algorithm that needs data.
    """
    rules = tuple(rule for rule in (_rule_of(part, parts, rule) for rule in recipe.rules) if rule is not None)
    wanted = dataclasses.replace(recipe, rules=rules)
    if has_data:
        return wanted
    rules = tuple(_without_data(rule) for rule in rules)
    algorithm = None if recipe.algorithm in algorithms.WITH_DATA else recipe.algorithm
    return dataclasses.replace(wanted, scheme=_needs_none(recipe.scheme), rules=rules, algorithm=algorithm)


def _without_data(rule: Rule) -> Rule:
    words = [_needs_none(rule.scheme)]
    words += [word for word in algorithms.DATA_FREE if word == rule.algorithm]
    words += [f"rank{rule.rank}"] if rule.rank else []
    return dataclasses.replace(rule, set="+".join(words))


def _needs_none(scheme: str) -> str:
    """The scheme, or the one in its place where there is no data."""
    return (SCHEMES[scheme].without_data if scheme in SCHEMES else "") or scheme


def is_kept(recipe: Recipe) -> bool:
    """Whether the recipe of a part keeps all of it in float, so that nothing of it has to be read."""
    whole = [rule for rule in recipe.rules if rule.nodes == "*" and not rule.ops]
    return bool(recipe.rules) and whole[-1:] == [recipe.rules[-1]] and recipe.rules[-1].set == KEEP


def _rule_of(part: str, parts: Sequence[str], rule: Rule) -> Rule | None:
    """The rule as it reads in this part; None if it is about others.

    What stands before a slash is a part if it is the name of one, or a glob with letters in it that matches one.
    """
    for head, tail in _splits(rule.nodes):
        named = [name for name in parts if fnmatch.fnmatchcase(name, head)]
        if named and head.strip("*?"):
            return dataclasses.replace(rule, nodes=tail) if part in named else None
    return rule


def _splits(pattern: str) -> Iterator[tuple[str, str]]:
    """(before, after) each slash, from the last on, so that the longest name of a part wins."""
    if not pattern.startswith("re:"):
        pieces = pattern.split("/")
        for n in range(len(pieces) - 1, 0, -1):
            yield "/".join(pieces[:n]), "/".join(pieces[n:])


def data_of(parts: Sequence[str], data: FolderData | None) -> tuple[dict[str, DataSource], list[str]]:
    """(the samples for each part that has some, sentences on entries of the folder of data that are for no part).

    Raises:
        BadData: there are several parts and it cannot be told which one the data are for.
    """
    if data is None:
        return {}, []
    if isinstance(data, Mapping):
        unknown = next((name for name in data if name not in parts), None)
        if unknown is not None:
            raise BadData(f"unknown part '{unknown}'; the parts are {', '.join(parts)}")
        return dict(data), []
    found: dict[str, Path] = {}
    unused: list[str] = []
    if isinstance(data, (str, Path)) and Path(data).is_dir():
        found, unused = _in_folder(parts, Path(data))
    if found:
        return dict(found), [f"{name} in {data} belongs to no part" for name in unused]
    if len(parts) == 1:
        return {parts[0]: data}, []
    what = str(data) if isinstance(data, (str, Path)) else "the data"
    raise BadData(
        f"it cannot be told which part {what} is for; give a folder with an entry for each part that has data, "
        f"named like it ({', '.join(parts)}), for example {parts[0]}.npz"
    )


def files_of(data: FolderData | None) -> list[str | Path]:
    """What of the samples may be files: words and paths, of all or by part."""
    sources = data.values() if isinstance(data, Mapping) else (data,)
    return [source for source in sources if isinstance(source, (str, Path))]


def samplings_of(parts: Sequence[str], sampling: Sampling | None) -> tuple[dict[str, Sampling], list[str]]:
    """(the samples of each part, which may be none; what is to be said of those that are for no part).

    Raises:
        BadData: as `data_of`.
    """
    wanted = sampling or Sampling()
    data, said = data_of(parts, wanted.source)
    return {name: dataclasses.replace(wanted, source=data.get(name)) for name in parts}, said


def _in_folder(parts: Sequence[str], data: Path) -> tuple[dict[str, Path], list[str]]:
    """(the entry of `data` for each part that has one, the others)."""
    found: dict[str, Path] = {}
    for name in map(Path, parts):
        named = [each for each in _entries(data / name.parent) if name.name in (each.name, each.stem)]
        if len(named) > 1:
            raise BadData(f"{data} holds both {' and '.join(each.name for each in named)} for part '{name}'; keep one")
        found |= {str(name): named[0]} if named else {}
    used = {path for entry in found.values() for path in (entry, *entry.parents)}
    return found, [each.name for each in _entries(data) if each not in used]


def _entries(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.name[0] != ".") if folder.is_dir() else []
