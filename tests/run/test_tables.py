"""What a person is shown of results and models."""

from __future__ import annotations

import math
import re

import pytest
from rich.console import Console, RenderableType

from onnxq.checking.models import Check
from onnxq.cli import _tables
from onnxq.passes.regions.step_names import RegionTime, StepTime


def shown(table: RenderableType, width: int = 200) -> str:
    console = Console(width=width, record=True)
    console.print(table)
    return console.export_text()


@pytest.mark.parametrize(
    ("count", "rest"), [(3, ""), (4, "1 other region 1 ms;"), (6, "3 other regions 6 ms together;")]
)
def test_the_regions_that_take_longest_come_first_and_the_others_have_one_row(count: int, rest: str) -> None:
    regions = [RegionTime(f"region_{n}", "Region", n, (StepTime("conv", "c", n),)) for n in range(1, count + 1)]
    check = Check("1 sample", 30.0, 30.0, 30.0, worst_sample=math.nan, regions=tuple(regions))
    text = shown(_tables.check_table(check))
    names = [line.split()[0] for line in text.splitlines() if line.startswith("region_")]
    assert names == [f"region_{n}" for n in range(count, count - 3, -1)]
    assert ("other region" in text) == bool(rest) and rest in re.sub(" +", " ", text)
