"""What the user asks for: a scheme, rules for single nodes, and the numbers that go with them."""

from __future__ import annotations

import fnmatch
import functools
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import re2

from onnxq import algorithms, collectors, formats
from onnxq.boundary import bounded, require_types
from onnxq.errors import BadRecipe, first_line
from onnxq.files import limits
from onnxq.preference import PREFERENCES, SEARCHES
from onnxq.schemes import INTEGER_SCHEMES, SCHEMES, SPEED_SCHEMES, weight_format

KEEP = "keep"
LONGEST_PATTERN = 1000
#: Of a recipe as a file: its bytes, and its rules, each of which may be for each node.
MOST_BYTES, MOST_RULES = 1 << 21, 10_000
#: At the begin of a line, or in a table on one, a key of so many parts, for each of which Python's parser keeps all
#: those before it.
_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_DEEP_KEY = rf"""(?m)(?:^[ \t]*\[{{0,2}}|[{{{{,])[ \t]*{_PART}(?:[ \t]*\.[ \t]*{_PART}){{64}}"""
#: What the fields of a recipe are written as.
_TYPES: Mapping[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
#: dB of signal to noise that every output is to reach where the user has not set a floor.
AIM = 20.0
#: What shares a scale: all weights of a tensor, those of an output channel or table row, or so many of a row.
GRANULARITIES = ("tensor", "channel", "block")
#: The formats with zero points, by those of as many bits without.
AFFINE: Mapping[str, str] = {"int2": "uint2", "int4": "uint4", "int8": "uint8", "int16": "uint16"}


#: What says a rank in a rule.
_RANK = re.compile(r"rank[1-9][0-9]{0,3}")


def require_scheme(word: str) -> None:
    """A scheme is one of `SCHEMES`, or a number format for the weights, of those in `formats/`.

    Raises:
        BadRecipe: `word` is neither; the message lists both.
    """
    if word not in SCHEMES:
        try:
            formats.get(word)
        except BadRecipe as error:
            if word.rstrip("0123456789") in formats.names():
                raise
            words = f"{', '.join(SCHEMES)}, or a number format for the weights: {', '.join(formats.names())}"
            raise BadRecipe(f"unknown scheme '{word}'; choose one of {words}") from error


@functools.cache
def _compiled(pattern: str) -> Any:
    """By RE2, whose time grows with the length of a name only; Python's own engine may take years for one.

    Raises:
        BadRecipe: it is no regular expression, or looks ahead, back or at groups, which RE2 cannot.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        why = error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else error
        raise BadRecipe(f"the rule 're:{pattern}' is not a regular expression (of RE2): {why}") from None


@dataclass(frozen=True)
class Rule:
    """Nodes whose name matches `nodes` (a glob, or a regular expression behind `re:`) and whose operator is in `ops`
    (any, if empty) are treated as scheme `set` says, or kept in float if it says `keep`. Behind plus signs stand the
    algorithm that chooses codes there, and the rank of what is added to make up for them: `int3+gptq+rank16`."""

    set: str
    nodes: str = "*"
    ops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_types(Rule, vars(self))
        if self.scheme == "auto":
            raise BadRecipe("a rule cannot set 'auto', which is for whole models; choose another scheme")
        words = self.set.split("+")[1:]
        if words and self.scheme == KEEP:
            raise BadRecipe(f"the rule '{self.set[:80]}' keeps nodes in float, where nothing is left to choose")
        if self.set != KEEP:
            require_scheme(self.scheme)
        ranks = [word for word in words if _RANK.fullmatch(word)]
        for word in words:
            if word not in ranks and word[:4].lower() == "rank":
                raise BadRecipe(
                    f"the rule '{self.set[:80]}' has no rank: write 'rank1' to 'rank9999', as 'int3+rank16'"
                )
            if word not in ranks:
                algorithms.require(word)
        if len(ranks) > 1 or len(words) - len(ranks) > 1:
            raise BadRecipe(f"the rule '{self.set[:80]}' names two of a kind: one algorithm and one rank are enough")
        if len(self.nodes) > LONGEST_PATTERN:
            raise BadRecipe(f"the rule '{self.nodes[:40]}…' is longer than {LONGEST_PATTERN} characters")
        if self.nodes.startswith("re:"):
            _compiled(self.nodes[3:])

    @property
    def scheme(self) -> str:
        """What such nodes are treated as, without an algorithm that `set` names too."""
        return self.set.partition("+")[0]

    @property
    def algorithm(self) -> str | None:
        """The algorithm that `set` names for such nodes; None: it names none."""
        return next((word for word in self.set.split("+")[1:] if not _RANK.fullmatch(word)), None)

    @property
    def rank(self) -> int:
        """The rank of what is added beside such nodes; 0: nothing is."""
        return next((int(word[4:]) for word in self.set.split("+")[1:] if _RANK.fullmatch(word)), 0)

    @property
    def is_of_one(self) -> bool:
        """Whether it is for the nodes of one name."""
        return not self.nodes.startswith("re:") and not any(mark in self.nodes for mark in "*?[")

    def matches(self, name: str, op_type: str) -> bool:
        """Whether it is for a node of this `name` and operator `op_type`."""
        if self.ops and op_type not in self.ops:
            return False
        if self.nodes.startswith("re:"):
            return _compiled(self.nodes[3:]).search(name) is not None
        return fnmatch.fnmatchcase(name, self.nodes)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result besides the model, the target and the data.

    Attributes:
        scheme: one of `SCHEMES`, or a number format for the weights of products and tables, activations in float.
        rules: later rules win over earlier ones, all of them over the scheme.
        block_size: weights that share a scale in block formats; None: the format's own (32, for nf4 and fp4 64).
        min_sqnr: dB of signal to quantization noise that every float output must reach on held-back samples, or the
            quantization fails; None: `AIM`, which is reached by longer formats where it can be, and never fails.
        calibration: how activation ranges are found, a file name of `collectors/`, which may have parameters
            (`percentile:99.99`); `auto` takes the one with the least error at the outputs.
        reduce_range: 7-bit weights for w8a8, for processors whose 8-bit dot product saturates (AVX2 and AVX-512
            without VNNI).
        keep_slow: keep quantized nodes even where they are slower than float.
        requantize: take models whose activations are quantized already, and quantize what is still in float.
        accuracy_level: of MatMulNBits: 4 rounds activations to int8 inside the kernel and is the fast one; 1 or 0
            compute in float32.
        prefer: what is given up for what, a word of `PREFERENCES`.
        effort: how many plans are measured, a word of `SEARCHES`.
        granularity: which weights share a scale, a word of `GRANULARITIES`; None: what the scheme or format has.
        symmetric: of schemes with integer weights: without zero points, or with them (False); None: as the scheme has
            it. A number format that is named says it by its name.
        algorithm: how codes are chosen, a word of `algorithms.WORDS`; `rtn` is each format's own rule, whose files
            hold the codes that other implementations of the format make. None: what measured best for each weight.
        balance: with data, scale channels between layers where that serves the quantized ones (SmoothQuant, AWQ).
    """

    scheme: str = "auto"
    rules: tuple[Rule, ...] = ()
    block_size: int | None = None
    min_sqnr: float | None = None
    calibration: str = "auto"
    reduce_range: bool = False
    keep_slow: bool = False
    requantize: bool = False
    accuracy_level: int = 4
    prefer: str = "balanced"
    effort: str = "normal"
    algorithm: str | None = None
    granularity: str | None = None
    symmetric: bool | None = None
    balance: bool = True

    def __post_init__(self) -> None:
        require_types(Recipe, vars(self))
        require_scheme(self.scheme)
        if self.block_size not in (None, 16, 32, 64, 128, 256):
            raise BadRecipe(f"invalid block size {self.block_size}; choose one of 16, 32, 64, 128, 256")
        for format in map(formats.get, self.schemes - SCHEMES.keys()):
            if format.has_fixed_block and self.block_size not in (None, format.default_block):
                raise BadRecipe(f"a block of {format.name} has {format.default_block} weights, not {self.block_size}")
        if self.min_sqnr is not None and math.isnan(self.min_sqnr):
            raise BadRecipe("min_sqnr must be a number of dB, not NaN")
        if self.accuracy_level not in range(5):
            raise BadRecipe(f"invalid accuracy level {self.accuracy_level}; choose one of 0, 1, 2, 3, 4")
        for word, words, what in ((self.prefer, PREFERENCES, "preference"), (self.effort, SEARCHES, "effort")):
            if word not in words:
                raise BadRecipe(f"unknown {what} '{word}'; choose one of {', '.join(words)}")
        if self.algorithm is not None:
            algorithms.require(self.algorithm)
        if self.calibration != "auto":
            collectors.get(self.calibration)
        self._require_form()

    def _require_form(self) -> None:
        """Refuse a granularity or symmetry that some scheme cannot have."""
        if self.granularity not in (None, *GRANULARITIES):
            words = ", ".join(GRANULARITIES)
            raise BadRecipe(
                f"unknown granularity '{self.granularity}'; choose one of {words} (block_size says how long)"
            )
        if self.granularity in ("tensor", "channel") and self.block_size is not None:
            raise BadRecipe(f"one scale a {self.granularity} and blocks of {self.block_size} exclude each other")
        for scheme in sorted(self.schemes):
            if self.granularity == "block" and scheme in INTEGER_SCHEMES:
                raise BadRecipe(
                    f"{scheme} has no blocks: its kernels take one scale a channel or tensor; w8a16 has them"
                )
            if self.symmetric is False and scheme in INTEGER_SCHEMES:
                raise BadRecipe(f"{scheme} has no affine weights: its kernels want zero points of 0; w8a16 has them")
            if scheme in SCHEMES:
                if (
                    self.symmetric is not None
                    and weight_format(scheme)
                    and not formats.get(weight_format(scheme)).is_integer
                ):
                    raise BadRecipe(f"{scheme} is no integer format: it is neither symmetric nor affine")
                continue
            format = formats.get(scheme)
            if format.has_fixed_block and self.granularity in ("tensor", "channel"):
                raise BadRecipe(
                    f"{scheme} has one scale for {format.default_block} weights, not one a {self.granularity}"
                )
            is_either = format.is_integer or format.has_minimum
            if self.symmetric is not None and not (is_either and self.symmetric == (format.offset_type is None)):
                raise BadRecipe(_says_itself(format, self.symmetric))

    def scheme_for(self, name: str, op_type: str) -> str:
        """The scheme word, or `keep`, for one node.

        Args:
            name, op_type: of the node in the prepared model.
        """
        rule = self._rule_for(name, op_type)
        return self.scheme if rule is None else rule.scheme

    def algorithm_for(self, name: str, op_type: str) -> str | None:
        """The algorithm that chooses codes for one node's weights; None: what measured best for each.

        Args:
            name, op_type: of the node in the prepared model.
        """
        rule = self._rule_for(name, op_type)
        return (rule and rule.algorithm) or self.algorithm

    def rank_for(self, name: str, op_type: str) -> int:
        """The rank of the two matrices that make up for the codes of one node's weight; 0: there are none.

        Args:
            name, op_type: of the node in the prepared model.
        """
        rule = self._rule_for(name, op_type)
        return rule.rank if rule else 0

    def _rule_for(self, name: str, op_type: str) -> Rule | None:
        of_name, of_many = self._by_name
        found = (rule for rule in of_name.get(name, ()) if rule[1].matches(name, op_type))
        number, last = next(found, (-1, None))
        return next((rule for i, rule in of_many if i > number and rule.matches(name, op_type)), last)

    @functools.cached_property
    def _by_name(self) -> tuple[dict[str, list[tuple[int, Rule]]], list[tuple[int, Rule]]]:
        """Rules with their numbers, the last first: those for a single name, by that, and the others."""
        of_name, of_many = dict[str, list[tuple[int, Rule]]](), list[tuple[int, Rule]]()
        for number, rule in reversed([*enumerate(self.rules)]):
            (of_name.setdefault(rule.nodes, []) if rule.is_of_one else of_many).append((number, rule))
        return of_name, of_many

    @property
    def aim(self) -> float:
        """dB of signal to noise that every output is to reach."""
        return AIM if self.min_sqnr is None else self.min_sqnr

    @property
    def schemes(self) -> frozenset[str]:
        """Every scheme word that some node may be treated by."""
        return frozenset({self.scheme, *(rule.scheme for rule in self.rules)} - {KEEP})

    @property
    def algorithms(self) -> frozenset[str]:
        """Every algorithm that the user named, for all nodes or for some."""
        return frozenset(filter(None, (self.algorithm, *(rule.algorithm for rule in self.rules))))

    def resolve(self, has_data: bool, has_evidence: bool = False, auto: tuple[str, str] = ("w8a8", "w4a16")) -> Recipe:
        """This recipe with `auto` replaced by what it stands for.

        Args:
            has_data: whether there are samples to calibrate with.
            has_evidence: whether what data say of layers is known without them.
            auto: what it stands for, with data and without.

        Raises:
            BadRecipe: w8a8, of the scheme or a rule, without calibration data.
        """
        for word in () if has_data else sorted(self.schemes & SCHEMES.keys()):
            if other := SCHEMES[word].without_data:
                raise BadRecipe(f"{word} needs calibration data: give --data, or use {other}, which needs none")
        for word in () if has_data or has_evidence else sorted(algorithms.WITH_DATA.keys() & self.algorithms):
            raise BadRecipe(f"the algorithm '{word}' needs calibration data: give --data, or --evidence of them")
        if self.scheme == "auto":
            return replace(self, scheme=auto[0] if has_data else auto[1])
        if self.scheme not in SPEED_SCHEMES:
            return replace(self, keep_slow=True)  # a format the user named is kept whatever its kernel's speed
        return self


def twin(word: str, *, symmetric: bool) -> str:
    """The integer format of as many bits without zero points, or with them; of other formats the word itself."""
    pairs = AFFINE if not symmetric else {affine: word for word, affine in AFFINE.items()}
    return pairs.get(word, word)


def _says_itself(format: formats.Format, symmetric: bool) -> str:
    other = twin(format.name, symmetric=symmetric)
    if other != format.name:
        return f"{format.name} is {'affine' if symmetric else 'symmetric'} by its name; use {other}"
    return f"{format.name} is not {'symmetric' if symmetric else 'affine'}; leave that out, or choose another format"


def parse_set(text: str) -> Rule:
    """The rule of `--set 'PATTERN=WORD'`."""
    pattern, equals, word = text.rpartition("=")
    if not equals or not pattern:
        raise BadRecipe(f"--set: invalid rule '{text}'; example: 'layers.0/*=w8a16'")
    return Rule(word, pattern)


@bounded
def load_recipe(path: str | Path) -> Recipe:
    """A recipe from TOML: the fields of `Recipe` as keys, and rules as `[[rule]]` tables.

    Args:
        path: of a TOML file.

    Raises:
        BadRecipe: not TOML, an unknown key, or a value of the wrong type.
    """
    try:
        text = limits.read_text(path, "the recipe ", MOST_BYTES)
        if re2.search(_DEEP_KEY, text):
            raise RecursionError
        table = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError is one; numbers of thousands of digits are another
        raise BadRecipe(f"the recipe '{path}' is not TOML: {first_line(error)}") from None
    except RecursionError:
        raise BadRecipe(f"the recipe '{path}' is nested too deeply") from None
    rules = table.pop("rule", [])
    if not isinstance(rules, list):
        raise BadRecipe(f"the recipe '{path}': rules are written as [[rule]] tables")
    allowed = {f.name: f for f in fields(Recipe) if f.name != "rules"}
    for key, value in table.items():
        if key not in allowed:
            raise BadRecipe(f"the recipe '{path}': unknown key '{key}'; valid keys: {', '.join(allowed)} and [[rule]]")
        wanted = _TYPES[str(allowed[key].type).split()[0]]
        if wanted is float and type(value) is int and abs(value) < 1 << 53:
            table[key] = float(value)
        elif type(value) is not wanted:
            raise BadRecipe(f"the recipe '{path}': {key} = {value!r} should be of type {wanted.__name__}")
    if len(rules) > MOST_RULES:
        raise BadRecipe(f"the recipe '{path}' has {len(rules)} rules, more than the {MOST_RULES} that are read")
    return Recipe(rules=tuple(_rule(path, entry) for entry in rules), **table)


def _rule(path: str | Path, entry: object) -> Rule:
    if not isinstance(entry, dict) or "set" not in entry or set(entry) - {"nodes", "ops", "set"}:
        raise BadRecipe(f"the recipe '{path}': a [[rule]] has 'set', and may have 'nodes' and 'ops', nothing else")
    word, nodes, ops = entry["set"], entry.get("nodes", "*"), entry.get("ops", [])
    if not isinstance(ops, list) or not all(isinstance(text, str) for text in (word, nodes, *ops)):
        raise BadRecipe(
            f"the recipe '{path}': in a [[rule]] 'set' and 'nodes' are strings and 'ops' is a list of strings"
        )
    return Rule(word, nodes, tuple(ops))
