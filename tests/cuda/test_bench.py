"""The benchmark runs from end to end, so that no GPU is the first to find its mistakes. Times mean nothing here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

FOLDER = Path(__file__).parents[2] / "custom_ops" / "bench"
pytest.importorskip("onnxruntime")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(FOLDER)])


@pytest.mark.sweep
def test_kernels_are_checked_and_timed(folder: None, emulated_library: Path, tmp_path: Path) -> None:
    import bench_cuda

    output = tmp_path / "results.md"
    arguments = ["--quick", "--no-peers", "--library", str(emulated_library), "--output", str(output)]
    done = CliRunner().invoke(bench_cuda.main, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    table = output.read_text(encoding="utf-8")
    for format, block in bench_cuda.KINDS:
        assert f"| {format} b{block} | 33 |" in table


@pytest.mark.sweep
def test_thresholds_are_printed_as_the_table_in_choose_h(folder: None, emulated_library: Path) -> None:
    import bench_cuda

    arguments = ["--quick", "--thresholds", "--rows", "1,3", "--library", str(emulated_library)]
    done = CliRunner().invoke(bench_cuda.main, arguments, catch_exceptions=False)
    assert done.exit_code == 0 and "// mxfp4" in done.output


@pytest.mark.sweep
def test_a_wrong_answer_stops_the_benchmark(
    folder: None, emulated_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bench_cuda

    monkeypatch.setattr(bench_cuda, "FORMATS", bench_cuda.FORMATS | {"nf4": 3})
    done = CliRunner().invoke(bench_cuda.main, ["--quick", "--no-peers", "--library", str(emulated_library)])
    assert done.exit_code != 0 and "nf4" in done.output and "relative error" in done.output


def test_onnxruntimes_operators_are_checked_and_timed(folder: None) -> None:
    import bench_cuda_ort

    for format, block, peer in (("int4", 32, "MatMulNBits"), ("nf4", 64, "MatMulBnb4")):
        w = bench_cuda_ort.products.random_weight(format, block, 64, 128, bench_cuda_ort.np.random.default_rng())
        for name, op, domain, arrays, attributes in bench_cuda_ort.spellings(w):
            made = bench_cuda_ort.model(op, domain, arrays, attributes, 2, 3)
            if name == "MatMulBnb4":  # the processor has it in float32 only
                continue
            assert bench_cuda_ort.seconds(made, w, 3, 2, provider="CPU") > 0
        assert peer in bench_cuda_ort.NAMES
    assert bench_cuda_ort.parse('noise\n{"a": 1.0}\n') == [{"a": 1.0}]
