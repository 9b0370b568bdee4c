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
#: What the sweep tunes: each network on every target, in one scheme after the other, so that every pair of a network
#: and a target, and of a scheme and a target is there. Where the number is 0 they are tuned with the usual effort: each
#: network once, each scheme on every target. The others measure fewer plans, and their files are checked as thoroughly.
#: Marker `night` tunes all of the product, and carries out first plans of what the sweep leaves out.
SOME = {
    (name, list(FLOORS)[(i + 2 * j) % len(FLOORS)], target): (i // len(FLOORS) + j) % len(TARGETS)
    for (i, name), (j, target) in itertools.product(enumerate(MODELS), enumerate(TARGETS))
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
