"""Models that are made at random, rather than spoiled: kinds of cases for `mutants.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attack.generated.bodies import bodies
from attack.generated.codes import codes
from attack.generated.operators import operators
from attack.mutants_data import Case

KINDS: dict[str, Callable[[Case, Path], list[str]]] = {"operators": operators, "bodies": bodies, "codes": codes}
