"""Networks of transformers by the exporters of torch, where the extra `zoo` is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from exports.checking import FLOORS, TARGETS, check
from exports.real import NETWORKS, architecture

pytest.importorskip("torch")
pytest.importorskip("transformers", exc_type=ImportError)
pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.zoo]

#: Exporters of torch; the newer one writes weights into a file beside the model.
EXPORTERS = ("dynamo", "script")
#: Networks that the older one refuses ("unordered_map::at", torch 2.13 and 2.14 with transformers 4.57).
REFUSED = [(name, "script") for name in ("gpt2", "llama", "mistral", "qwen2")]
#: Each network by each exporter in each scheme, on one target after the other.
CASES = [
    (name, exporter, scheme, TARGETS[(i + j + k) % 3])
    for i, name in enumerate(NETWORKS)
    for j, exporter in enumerate(EXPORTERS)
    for k, scheme in enumerate(FLOORS)
    if (name, exporter) not in REFUSED
]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    made: dict[tuple[str, str], Path] = {}

    def export(name: str, exporter: str) -> Path:
        key = (name, exporter)
        if key not in made:
            with warnings.catch_warnings():  # of the exporters, about themselves
                warnings.simplefilter("ignore")
                made[key] = architecture(name, exporter).make(tmp_path_factory.mktemp(f"{name}-{exporter}"))
        return made[key]

    return export


@pytest.mark.parametrize(("name", "exporter", "scheme", "target"), CASES, ids=["-".join(case) for case in CASES])
def test_export(
    name: str, exporter: str, scheme: str, target: str, exported: Callable[[str, str], Path], tmp_path: Path
) -> None:
    check(name, architecture(name, exporter), exported(name, exporter), scheme, target, tmp_path)
