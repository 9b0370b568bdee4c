"""A score that the user measures by a function of their own: accuracy on labels, a loss, anything."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from onnxq.errors import BadRecipe, CheckFailed
from onnxq.files.data_files import own_data
from onnxq.formats.kinds.arguments import is_masked
from onnxq.runtime.library import session
from onnxq.runtime.own_functions import call, import_function, shown

#: Takes the path of a model, or, if that is what its parameter is called, a `session`; the higher, the better.
Evaluate = Callable[..., float]
#: Share of a score by which rounding does not make a model better.
RISE = 0.02


@dataclass(frozen=True)
class Score:
    """Of the float model and of the quantized one.

    Attributes:
        allowed: by how much it may fall; None: by any amount.
        evaluations: quantized files that were scored.
        metric: a word of `metrics.WORDS`; empty: the user's own function.
        higher: whether a higher score is better.
    """

    in_float: float
    quantized: float
    allowed: float | None
    evaluations: int = 1
    metric: str = ""
    higher: bool = True

    @property
    def drop(self) -> float:
        """By how much it got worse."""
        return self.in_float - self.quantized if self.higher else self.quantized - self.in_float

    @property
    def is_good(self) -> bool:
        # What was written as 0.005 is not missed by how 0.81 - 0.805 comes out in binary.
        return self.allowed is None or self.drop <= self.allowed + 1e-9 * max(1.0, abs(self.in_float))

    @property
    def doubt(self) -> str:
        """What makes it look like a loss, which users may give by mistake: a sentence, or nothing."""
        rise, noise = self.quantized - self.in_float, max(self.allowed or 0.0, RISE * abs(self.in_float))
        if self.metric or rise <= noise:
            return ""
        return (
            f"the score rose from {self.in_float:.6g} to {self.quantized:.6g}: if it is a loss, of which less is "
            "better, let the function return minus it"
        )

    def require_good(self) -> None:
        """
        Raises:
            CheckFailed: it fell by more than it may.
        """
        if not self.is_good:
            raise CheckFailed(
                f"the {self.metric or 'score'} {'falls' if self.higher else 'rises'} from {self.in_float:.6g} to "
                f"{self.quantized:.6g}, by more than the {self.allowed:g} allowed: keep more nodes in float (--keep), "
                "or raise --max-drop"
            )


class Metric:
    """A function of the user's, and by how much what it finds may fall.

    Args:
        evaluate: `module:function`, or a function.
        max_drop: None: by any amount.

    Raises:
        BadRecipe: there is no such function, or the drop is no number from 0 on.
    """

    def __init__(self, evaluate: Evaluate | str, max_drop: float | None) -> None:
        if max_drop is not None and not 0 <= max_drop < math.inf:
            raise BadRecipe(f"invalid --max-drop {max_drop:g}; example: 0.005")
        self.max_drop = max_drop
        self._name = evaluate if isinstance(evaluate, str) else getattr(evaluate, "__name__", "the given function")
        self._function = _imported(evaluate) if isinstance(evaluate, str) else evaluate
        self._in_float = functools.cache(self._measure)

    def score(self, in_float: Path, quantized: Path, evaluations: int) -> Score:
        """
        Args:
            in_float: scored the first time only.

        Raises:
            BadRecipe: the function fails, or gives no finite number.
        """
        return Score(self._in_float(in_float), self._measure(quantized), self.max_drop, evaluations)

    def _measure(self, path: Path) -> float:
        what, wants_session = f"--evaluate {self._name}", self._wants_session()
        gets = "a session" if wants_session else "the path of a model"
        before = _stamps(path)
        found = call(self._function, what, [gets], [session(path) if wants_session else str(path)], BadRecipe)
        if _stamps(path) != before:
            raise BadRecipe(f"{what} changed '{path}', the file that it was to score: let it work on a copy")
        number = _finite(found)
        if number is None:
            raise BadRecipe(f"{what} gave {shown(found)} for '{path}', not a finite number")
        return number

    def _wants_session(self) -> bool:
        try:
            return next(iter(inspect.signature(self._function).parameters), "") == "session"
        except (TypeError, ValueError):  # one of C, which does not say what it takes
            return False


def _stamps(path: Path) -> list[tuple[str, int, int, int]]:
    """What tells the files of a model from what they become when somebody writes to them."""
    found = [(file, os.stat(file)) for file in (path, *own_data(path)) if file.exists()]
    return [(str(file), seen.st_ino, seen.st_size, seen.st_mtime_ns) for file, seen in found]


def _imported(word: str) -> Evaluate:
    return import_function(word, f"--evaluate '{word}'", BadRecipe)


def _finite(found: object) -> float | None:
    """A number as Python's own; None: it is none, masked, or too large for that."""
    try:
        if is_masked(found):
            return None
        if not isinstance(found, Real) and callable(getattr(found, "item", None)):
            found = found.item()  # type: ignore[attr-defined]  # an array or tensor of one number; others refuse
        number = float(found) if isinstance(found, Real) else math.nan
    except Exception:  # an integer beyond all floats; or of a class that is the user's
        return None
    return number if math.isfinite(number) else None
