"""Rows of weights that are shorter than a block of the format get a shorter one."""

from __future__ import annotations

import pytest
from test_planner import planned

from onnxq.recipe import Recipe


@pytest.mark.parametrize(
    ("scheme", "k", "label"),
    [
        *(("w4a16", 8, "uint4 b16"), ("w4a16", 24, "uint4 b32"), ("w4a16", 40, "uint4 b32"), ("mxfp4", 8, "mxfp4 b32")),
        *(("w8a16", 16, "int8 b16"), ("nf4", 24, "nf4 b32"), ("nf4", 40, "nf4 b16")),
    ],
)
def test_products_of_rows_shorter_than_a_block_have_shorter_ones(scheme: str, k: int, label: str) -> None:
    choice = planned("MatMul(x, w)", (k, 400), Recipe(scheme), "onnxq")
    assert choice.label == label
