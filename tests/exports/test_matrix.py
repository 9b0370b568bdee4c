"""Networks as people export them × schemes × targets, checked on other batches and lengths than onnxq saw."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from exports import language, others, vision
from exports.builder import Architecture
from exports.checking import FLOORS, TARGETS, check, check_first_plan
from sweeps import at_night

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.sweep]

MODELS: dict[str, Architecture] = language.MODELS | vision.MODELS | others.MODELS
ALL = list(itertools.product(MODELS, FLOORS, TARGETS))
#: These go the same way through all passes, with other numbers: a network takes one of them.
TWINS = ("w4a16", "nf4")
#: What the sweep tunes: each network in two of three schemes, on one target after the other, so that every pair of a
#: network and a target, and of a scheme and a target is there. Where the number is 0 they are tuned with the usual
#: effort: each network in one or two schemes, each scheme on every target. The others measure fewer plans, and their
#: files are checked as thoroughly. Marker `night` tunes all of the product, and carries out first plans of what the
#: sweep leaves out.
SOME = {
    (name, scheme, TARGETS[(i + j) % 3]): number
    for (i, name), (j, scheme) in itertools.product(enumerate(MODELS), enumerate(FLOORS))
    if scheme != TWINS[i % 2] and (number := (i + j + i // 3) % 3) < 2
}
CASES = [(pytest.param if case in SOME else at_night)(*case, id="-".join(case)) for case in ALL]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of an architecture, made once."""
    made: dict[str, Path] = {}

    def export(name: str) -> Path:
        if name not in made:
            made[name] = MODELS[name].make(tmp_path_factory.mktemp(name))
        return made[name]

    return export


@pytest.mark.parametrize(("name", "scheme", "target"), CASES)
def test_export(name: str, scheme: str, target: str, exported: Callable[[str], Path], tmp_path: Path) -> None:
    effort = "quick" if SOME.get((name, scheme, target)) else "normal"
    check(name, MODELS[name], exported(name), scheme, target, tmp_path, effort)


@pytest.mark.night
@pytest.mark.parametrize(("name", "scheme", "target"), [case for case in ALL if case not in SOME], ids="-".join)
def test_first_plan(name: str, scheme: str, target: str, exported: Callable[[str], Path], tmp_path: Path) -> None:
    check_first_plan(name, MODELS[name], exported(name), scheme, target, tmp_path)
