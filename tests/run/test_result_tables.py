"""What a person is shown of results and models."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import tiny
from rich.console import Console, RenderableType

from onnxq.bundles import measure
from onnxq.bundles.export import export
from onnxq.bundles.verify import verify
from onnxq.checking.models import Check
from onnxq.cli import _bundles, _tables
from onnxq.passes.regions.step_names import RegionTime, StepTime


def shown(table: RenderableType, width: int = 200) -> str:
    console = Console(width=width, record=True)
    console.print(table)
    return console.export_text()


@pytest.mark.parametrize(("count", "rest"), [(3, ""), (4, "1 other region 1 ms;"), (6, "3 other regions 6 ms;")])
def test_the_regions_that_take_longest_come_first_and_the_others_have_one_row(count: int, rest: str) -> None:
    regions = [RegionTime(f"region_{n}", "Region", n, (StepTime("conv", "c", n),)) for n in range(1, count + 1)]
    check = Check("1 sample", 30.0, 30.0, 30.0, worst_sample=math.nan, regions=tuple(regions))
    text = shown(_tables.check_table(check))
    names = [line.split()[0] for line in text.splitlines() if line.startswith("region_")]
    assert names == [f"region_{n}" for n in range(count, count - 3, -1)]
    assert ("other region" in text) == bool(rest) and rest in re.sub(" +", " ", text)


def test_a_bundle_is_as_large_where_it_is_verified_and_samples_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.001)
    path = tiny.save(tiny.model("g (float[n, 8] x) => (float[n, 8] y) { y = Relu(x) }"), tmp_path)
    done = export(path, tmp_path / "b", data=[{"x": tiny.normal(1, 8, seed=seed)} for seed in range(2)])
    found = verify(tmp_path / "b")
    assert done.bytes == found.bytes == sum((tmp_path / "b" / name).stat().st_size for name in done.manifest.files)
    assert re.search(r"samples +2 stored +of the data", shown(_bundles.exported_table(done)))
    made_up = export(path, tmp_path / "c")
    assert re.search(r"samples +\d stored +of \d+ made-up inputs", shown(_bundles.exported_table(made_up)))
