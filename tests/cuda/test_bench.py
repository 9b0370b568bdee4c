"""The benchmark runs from end to end, so that no GPU is the first to find its mistakes. Times mean nothing here."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("onnxruntime")


@pytest.mark.sweep
def test_kernels_are_checked_and_timed(emulated_library: Path, tmp_path: Path) -> None:
    import bench_cuda

    output = tmp_path / "results.md"
    arguments = ["--quick", "--no-peers", "--library", str(emulated_library), "--output", str(output)]
    done = CliRunner().invoke(bench_cuda.main, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    table = output.read_text(encoding="utf-8")
    for format, block in bench_cuda.KINDS:
        assert f"| {format} b{block} | 33 |" in table


@pytest.mark.sweep
def test_thresholds_are_printed_as_the_table_in_choose_h(emulated_library: Path) -> None:
    import bench_cuda

    arguments = ["--quick", "--thresholds", "--rows", "1,3", "--library", str(emulated_library)]
    done = CliRunner().invoke(bench_cuda.main, arguments, catch_exceptions=False)
    assert done.exit_code == 0 and "// mxfp4" in done.output


@pytest.mark.sweep
def test_a_wrong_answer_stops_the_benchmark(emulated_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bench_cuda

    monkeypatch.setattr(bench_cuda, "FORMATS", bench_cuda.FORMATS | {"nf4": 3})
    done = CliRunner().invoke(bench_cuda.main, ["--quick", "--no-peers", "--library", str(emulated_library)])
    assert done.exit_code != 0 and "nf4" in done.output and "relative error" in done.output


def test_onnxruntimes_operators_are_checked_and_timed() -> None:
    import bench_cuda
    import bench_cuda_ort as ort
    import bench_peers

    for format, block, peer in (("int4", 32, "MatMulNBits"), ("nf4", 64, "MatMulBnb4")):
        w = ort.products.random_weight(format, block, 64, 128, ort.np.random.default_rng())
        for name, op, domain, arrays, attributes in ort.spellings(w):
            made = ort.model(op, domain, arrays, attributes, 2)
            if name == "MatMulBnb4":  # the processor has it in float32 only
                continue
            timer = ort.timer(made, w, "CPU", 2)
            assert timer(3) > 0 and timer(1) > 0
        assert peer in ort.NAMES and set(ort.NAMES) <= set(bench_cuda.PEERS)
    assert bench_peers.parse('noise\n{"a": {"4": 1.0}}\n') == [{"a": {4: 1.0}}]


def test_a_wrong_answer_of_a_peer_is_none() -> None:
    import bench_peers

    rng = bench_peers.np.random.default_rng(0)
    w = bench_peers.products.random_weight("int4", 32, 64, 128, rng)
    x = rng.standard_normal((3, 128))
    y = x @ w.rows(slice(None)).astype(float).T
    bench_peers.check(y, x, w)
    with pytest.raises(ValueError, match="relative error"):
        bench_peers.check(bench_peers.np.roll(y, 1, axis=1), x, w)


def test_what_a_peer_does_not_come_to_is_left_out(tmp_path: Path) -> None:
    import bench_peers

    script = tmp_path / "peer.py"
    script.write_text("import sys\nprint('{\"a\": {\"1\": 0.5}}')\nprint('no memory', file=sys.stderr)\nsys.exit(3)\n")
    assert list(bench_peers.ask(str(script), ["case", "case"])) == [{"a": {1: 0.5}}, {}]
