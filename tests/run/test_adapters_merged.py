"""`onnxq lora merge`: what an adapter does not change stays as it lies in the file, and what it changes its format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import numpy_helper
from sweeps import swept

import onnxq
from onnxq import formats, targets
from onnxq.algorithms.low_rank import Factors
from onnxq.cli import main
from onnxq.errors import BadData
from onnxq.model.load import is_quantized, load_model
from onnxq.output.signature import KEY
from onnxq.runtime.own_files.adapter_file import write_adapter_file
from onnxq.training.adapters.adapter import Adapter
from onnxq.training.adapters.merge import Merged, merge_adapter
from onnxq.training.adapters.use import convert_adapter, make_base

WIDTH = 64
#: Of each way in which a target spells codes.
SHOWN = {
    "ort-cpu": ("nf4", "uint4", "e2m1", "int16", "float16", "float8_e4m3"),
    "onnxq": ("nf4", "nf4_dq", "lpbq", "q4_k", "uint2", "tq1_0"),
}


def cases() -> list[object]:
    """Formats, targets that hold them, and granularities, of products that read codes."""
    found: list[object] = []
    for target in ("ort-cpu", "onnxq"):
        for word in formats.names():
            format = formats.get(word)
            if word != "uniform" and not targets.get(target).refusal(word):
                has_one = format.has_fixed_block or format.scale_type is None
                every = [(word, target, how) for how in (None, "channel")[: 2 - has_one]]
                found += every if word in SHOWN[target] else [swept(*each) for each in every]
    return found


def written(made: Adapter, path: Path) -> Path:
    arrays = {f"{name}.lora_{word}": x for name, pair in made.factors.items() for word, x in zip("AB", pair)}  # noqa: B905
    write_adapter_file(path, arrays)
    return path


def factors(k: int, n: int, a: float = 1, b: float = 1) -> Factors:
    return Factors(tiny.normal(k, 2) * np.float32(a), tiny.normal(2, n, seed=3) * np.float32(b))


def network(inner: int, dtype: type = np.float32) -> onnx.ModelProto:
    """Of two products, of whose weights the rows are `WIDTH` and `inner` long."""
    kind = {np.float16: "float16", np.float32: "float", np.float64: "double"}[dtype]
    text = f"g ({kind}[M,{WIDTH}] x) => ({kind}[M,{WIDTH}] y) {{ [up] h = MatMul(x, w) [down] y = MatMul(h, v) }}"
    weights = {"w": tiny.normal(WIDTH, inner, dtype=dtype), "v": tiny.normal(inner, WIDTH, seed=4, dtype=dtype)}
    return tiny.model(text, weights)


def merged(model: Path, folder: Path, **added: Factors) -> Merged:
    output = folder / "merged.onnx"
    output.unlink(missing_ok=True)
    return merge_adapter(model, written(Adapter(added), folder / "a.onnx_adapter"), output, accuracy_level=0)


def bytes_of(path: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The nodes of a model, and its constants, by name."""
    nodes, constants = (onnx.load(path).graph.node, onnx.load(path).graph.initializer)
    return {x.name: x.SerializeToString() for x in nodes}, {x.name: x.SerializeToString() for x in constants}


def kinds_of(path: Path) -> list[tuple[str, str, str]]:
    return sorted((node.domain, node.op_type, node.overload) for node in onnx.load(path).graph.node)


def weight(path: Path, name: str = "w") -> NDArray:
    """A float weight of a merged file, whatever it is called by now."""
    return next(numpy_helper.to_array(x) for x in onnx.load(path).graph.initializer if x.name.split("_")[0] == name)


@pytest.mark.parametrize("inner", [96, 80])  # whole blocks of 32, and of 16 only
@pytest.mark.parametrize(("word", "target", "granularity"), cases())
def test_only_the_product_that_the_adapter_changes_is_written_anew_and_in_its_format(
    word: str, target: str, granularity: str | None, inner: int, tmp_path: Path, quick: None
) -> None:
    base, model = tmp_path / "base.onnx", tiny.save(network(inner), tmp_path)
    recipe = onnxq.Recipe(word, granularity=granularity, min_sqnr=float("-inf"), accuracy_level=0, keep_slow=True)
    onnxq.quantize(model, base, recipe=recipe, target=target, check=False)
    before = bytes_of(base)
    nothing = merged(base, tmp_path, up=factors(WIDTH, inner, 0), down=factors(inner, WIDTH, 0))
    assert bytes_of(nothing.output) == before
    assert (nothing.losses, nothing.unchanged) == ({}, ["up", "down"])
    for name, k, n in (("up", WIDTH, inner), ("down", inner, WIDTH)):
        done = merged(base, tmp_path, **{name: factors(k, n)})
        loss = done.losses[name]
        assert loss is not None and loss.weight > 2 and done.formats == {}
        assert kinds_of(done.output) == kinds_of(base)
        others = ("down", "v_") if name == "up" else ("up", "w_")
        for was, now in zip(before, bytes_of(done.output), strict=True):
            assert {x: y for x, y in was.items() if x.startswith(others)}.items() <= now.items()
        assert done.check is not None


def test_the_format_is_told_where_it_is_another_now(tmp_path: Path, quick: None) -> None:
    codes = {"B": np.random.default_rng(0).integers(0, 256, (WIDTH, 2, 16), np.uint8)}
    codes |= {"s": np.full((WIDTH * 2,), 0.01, np.float32), "z": np.full((WIDTH * 2,), 7.5, np.float32)}
    product = f"com.microsoft.MatMulNBits<K={WIDTH}, N={WIDTH}, bits=4, block_size=32>(x, B, s, z)"
    text = f"g (float[M,{WIDTH}] x) => (float[M,{WIDTH}] y) {{ [up] y = {product} }}"
    model = tiny.save(tiny.model(text, codes), tmp_path)
    source = written(Adapter({"up": factors(WIDTH, WIDTH)}), tmp_path / "a.onnx_adapter")
    words = ["lora", "merge", str(model), str(source), "-o", str(tmp_path / "merged.onnx")]
    said = CliRunner().invoke(main, words, catch_exceptions=False).output
    assert "up  nothing lost; float now, codes of another kind before" in said


@pytest.mark.parametrize(("dtype", "lost"), [(np.float16, True), (np.float32, False), (np.float64, False)])
def test_what_rounding_a_float_weight_leaves_of_the_adapter_is_told(
    dtype: type, lost: bool, tmp_path: Path, quick: None
) -> None:
    model, added = tiny.save(network(WIDTH, dtype), tmp_path), factors(WIDTH, WIDTH, 2e-2, 2e-3)
    done = merged(model, tmp_path, up=added)
    before, after = (weight(path).astype(np.float64) for path in (model, done.output))
    delta = added.a @ added.b
    if lost:
        loss = done.losses["up"]
        assert loss is not None and loss.weight > 60
        assert loss.adapter == pytest.approx(tiny.sqnr(delta, after - before), abs=0.1) and loss.adapter < 10
    else:
        assert done.losses == {"up": None}
        np.testing.assert_array_equal(after, (before + delta).astype(dtype))


def test_a_weight_that_is_infinite_already_stays_so_and_one_that_becomes_so_is_refused(
    tmp_path: Path, quick: None
) -> None:
    proto, w = network(WIDTH), tiny.normal(WIDTH, WIDTH)
    w[0, 0], added = np.inf, factors(WIDTH, WIDTH)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    done = merged(tiny.save(proto, tmp_path), tmp_path, up=added)
    np.testing.assert_array_equal(weight(done.output), w + added.a @ added.b)
    assert done.losses == {"up": None}
    with pytest.raises(BadData, match="node 'up' and its adapter make weights too large for float"):
        merged(tiny.save(proto, tmp_path), tmp_path, up=factors(WIDTH, WIDTH, 1e25, 1e25))


@pytest.mark.parametrize("word", ["keep", "int4", "int16"])
def test_what_a_gemm_multiplies_its_weight_by_is_not_for_the_adapter(word: str, tmp_path: Path, quick: None) -> None:
    proto = network(WIDTH)
    proto.graph.node[1].CopyFrom(onnx.helper.make_node("Gemm", ["h", "v"], ["y"], "down", alpha=0.25, transB=1))
    base = model = tiny.save(proto, tmp_path)
    if word != "keep":
        base, recipe = tmp_path / "base.onnx", onnxq.Recipe(word, min_sqnr=float("-inf"), accuracy_level=0)
        onnxq.quantize(model, base, recipe=recipe, target="onnx", check=False)
    done = merged(base, tmp_path, down=factors(WIDTH, WIDTH))
    assert done.check is not None and done.check.sqnr > (15 if word == "int4" else 80)
    loss = done.losses["down"]
    assert loss is None or loss.adapter > 15


@pytest.mark.parametrize("scale", [3e6, 3e-9])
def test_an_adapter_of_which_one_matrix_is_beyond_float16_is_put_beside_and_merged(
    scale: float, tmp_path: Path, quick: None
) -> None:
    model, added = tiny.save(network(WIDTH, np.float16), tmp_path), factors(WIDTH, WIDTH, scale, 0.3 / scale)
    delta, done = added.a @ added.b, merged(model, tmp_path, up=added)
    assert tiny.sqnr(delta, weight(done.output).astype(np.float64) - weight(model)) > 30
    convert_adapter(model, tmp_path / "a.onnx_adapter", tmp_path / "beside.onnx")
    held = {x.name: numpy_helper.to_array(x) for x in onnx.load(tmp_path / "beside.onnx").graph.initializer}
    assert tiny.sqnr(delta, held["up.lora_A"].astype(np.float32) @ held["up.lora_B"].astype(np.float32)) > 50


def test_a_product_in_a_body_and_one_whose_codes_another_reads_too_are_merged_alone(
    tmp_path: Path, quick: None
) -> None:
    text = (
        "g (float[M,64] x, bool c) => (float[M,64] y, float[M,64] z) { [up] y = MatMul(x, w) [if] z = If(c) "
        "<then_branch = t () => (float[M,64] a) { [then] a = MatMul(x, w) }, "
        "else_branch = e () => (float[M,64] b) { [else] b = Neg(x) }> }"
    )
    base, model = tmp_path / "base.onnx", tiny.save(tiny.model(text, {"w": tiny.normal(64, 64)}), tmp_path)
    recipe = onnxq.Recipe("int4", min_sqnr=float("-inf"), accuracy_level=0, keep_slow=True)
    onnxq.quantize(model, base, recipe=recipe, target="ort-cpu", check=False)
    _, constants = bytes_of(base)
    done = merged(base, tmp_path, then=factors(64, 64))
    nodes, now = bytes_of(done.output)
    assert constants.items() <= now.items() and bytes_of(base)[0]["up"] == nodes["up"]
    assert done.check is not None and done.check.sqnr > 10


def test_a_file_of_older_operators_is_raised_to_those_that_the_format_needs(tmp_path: Path, quick: None) -> None:
    product = "com.microsoft.MatMulNBits<K=64, N=64, bits=4, block_size=32>(x, B, s)"
    text = (
        f"g (float[M,64] x) => (float[M,64] y, float[M,1] z) {{ [up] y = {product} "
        "z = ReduceMax<axes=[1], keepdims=1>(y) }"
    )
    numbers = np.random.default_rng(0)
    codes = {"B": numbers.integers(0, 256, (64, 2, 16), np.uint8), "s": np.full(128, 0.05, np.float32)}
    proto = tiny.model(text, codes)
    proto.metadata_props.add(key=KEY, value='{"target": "onnx"}')
    done = merged(tiny.save(proto, tmp_path), tmp_path, up=factors(64, 64))
    made = onnx.load(done.output)
    assert {"DequantizeLinear", "MatMul", "ReduceMax"} < {node.op_type for node in made.graph.node}
    assert next(each.version for each in made.opset_import if not each.domain) == 21
    assert done.formats == {} and done.check is not None and done.check.sqnr > 15


def test_a_float_model_stays_one_with_its_adapter_and_a_quantized_one_does_not_become_one(
    tmp_path: Path, quick: None
) -> None:
    files = {"floats": tiny.save(network(96), tmp_path, "m.onnx")}
    files["fp16"] = tmp_path / "fp16.onnx"  # which only its metadata tell from one in floats
    onnxq.quantize(files["floats"], files["fp16"], "fp16", check=False)
    for name, file in files.items():
        adapter = written(Adapter({"up": factors(WIDTH, 96)}), tmp_path / f"{name}.onnx_adapter")
        made = [
            convert_adapter(file, adapter, tmp_path / f"{name}.beside.onnx").output,
            merge_adapter(file, adapter, tmp_path / f"{name}.merged.onnx").output,
            make_base(file, tmp_path / f"{name}.base.onnx").output,
        ]
        assert {is_quantized(load_model(each)) for each in made} == {None if name == "floats" else "by onnxq"}
    onnxq.quantize(tmp_path / "floats.merged.onnx", tmp_path / "again.onnx", "w4a16", check=False)
    assert is_quantized(load_model(tmp_path / "again.onnx")) is not None
