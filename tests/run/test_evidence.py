"""What data say of layers: gathered while the model runs, and used for the codes of weights."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxq import Recipe, quantize, quantize_folder
from onnxq.calibration.find_ranges import Effort
from onnxq.calibration.gather_evidence import evidence_of, needed
from onnxq.cli import main
from onnxq.errors import BadModel, BadOutput, BadRecipe, OnnxqError, UnusedOption
from onnxq.folders.options_of_part import recipe_of
from onnxq.job import Job, open_job
from onnxq.model.layer_inputs import Patches, Rows, layer_inputs
from onnxq.recipe import parse_set
from onnxq.summaries.evidence import Evidence

BODY = "m (float[N, 96] x) => (float[N, 64] y) { h = MatMul(x, W1) r = Relu(h) y = MatMul(r, W2) }"


def samples(count: int = 12, k: int = 96, rows: int = 40) -> list[dict[str, NDArray]]:
    r = np.random.default_rng(0)
    mix = r.standard_normal((k, k)) * r.gamma(1, 1, k)
    return [{"x": (r.standard_normal((rows, k)) @ mix).astype(np.float32)} for _ in range(count)]


def two_layers() -> onnx.ModelProto:
    return tiny.model(BODY, {"W1": tiny.normal(96, 128), "W2": tiny.normal(128, 64, seed=1)})


def job_of(proto: onnx.ModelProto, folder: Path, data: list[dict[str, NDArray]], **recipe: object) -> Job:
    return open_job(
        tiny.save(proto, folder), dataclasses.replace(Recipe("int4", algorithm="gptq"), **recipe), "onnxq", data
    )


def seen(job: Job, folder: Path, memory: int | None = None) -> Evidence:
    return evidence_of(job, needed(job), Effort(memory), folder)


def run(path: Path, feed: dict[str, NDArray]) -> NDArray:
    return onnxruntime.InferenceSession(str(path)).run(None, feed)[0]


def test_gram_matrices_are_those_of_the_layers_inputs(tmp_path: Path) -> None:
    data = samples(3)
    job = job_of(two_layers(), tmp_path, data)
    found = seen(job, tmp_path)
    used = [sample["x"] for sample in job.data.split(6)[0]]  # type: ignore[union-attr]
    x = np.concatenate(used)
    np.testing.assert_allclose(found["W1"].gram().sums[0], x.T @ x, rtol=1e-4, atol=1e-2)
    r = np.maximum(x @ tiny.normal(96, 128), 0)
    np.testing.assert_allclose(found["W2"].gram().sums[0], r.T @ r, rtol=1e-3, atol=1e-1)
    assert found["W1"].held_back()[0].shape[1:] == (1, 96)


def test_memory_that_holds_one_matrix_gives_the_same(tmp_path: Path) -> None:
    job = job_of(two_layers(), tmp_path, samples(4))
    folders = [tmp_path / "all", tmp_path / "one"]
    for folder in folders:
        folder.mkdir()
    whole, parts = seen(job, folders[0]), seen(job, folders[1], memory=1)
    for name in whole:
        np.testing.assert_array_equal(whole[name].gram().sums, parts[name].gram().sums)


def test_a_weight_read_twice_is_chosen_for_both_inputs(tmp_path: Path) -> None:
    text = "m (float[N, 96] x) => (float[N, 96] y) { h = MatMul(x, W) r = Relu(h) y = MatMul(r, W) }"
    job = job_of(tiny.model(text, {"W": tiny.normal(96, 96)}), tmp_path, samples(3))
    x = np.concatenate([sample["x"] for sample in job.data.split(6)[0]])  # type: ignore[union-attr]
    r = np.maximum(x @ tiny.normal(96, 96), 0)
    np.testing.assert_allclose(seen(job, tmp_path)["W"].gram().sums[0], x.T @ x + r.T @ r, rtol=1e-3, atol=1e-1)


def test_a_table_that_is_also_looked_up_keeps_codes_without_data(tmp_path: Path) -> None:
    text = "m (int64[N] i, float[N, 96] x) => (float[N, 96] e, float[N, 96] y) { e = Gather(W, i) y = MatMul(x, W) }"
    proto = tiny.model(text, {"W": tiny.normal(96, 96)})
    data = [{"i": np.arange(40), **sample} for sample in samples(3)]
    assert not needed(job_of(proto, tmp_path, data))


def test_a_head_that_is_the_transposed_table_keeps_its_codes(tmp_path: Path) -> None:
    text = """m (int64[N] i) => (float[N, 96] e, float[N, 400] y) {
        e = Gather(W, i) r = Relu(e) h = MatMul(r, V) T = Transpose <perm = [1, 0]> (W) y = MatMul(h, T) }"""
    proto = tiny.model(text, {"W": tiny.normal(400, 96), "V": tiny.normal(96, 96, seed=1)})
    data = [{"i": np.arange(k, k + 40)} for k in range(9)]
    assert set(needed(job_of(proto, tmp_path, data))) == {"V"}
    sizes = [
        quantize(tmp_path / "model.onnx", tmp_path / "o.onnx", "int4", data=given, force=True, check=False).bytes_after
        for given in (data, None)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)  # its codes are written once in both


def test_weights_in_an_if_are_seen_where_it_takes_them(tmp_path: Path) -> None:
    text = """m (bool c, float[N, 96] x) => (float[N, 64] y) {
        y = If (c) <then_branch = t () => (float[N, 64] a) { r = Relu(x) a = MatMul(r, W1) },
                    else_branch = f () => (float[N, 64] b) { s = Sigmoid(x) b = MatMul(s, W2) }> }"""
    proto = tiny.model(text, {"W1": tiny.normal(96, 64), "W2": tiny.normal(96, 64, seed=1)})
    data = [{"c": np.array(i % 2 == 0), **sample} for i, sample in enumerate(samples(8))]
    found = seen(job_of(proto, tmp_path, data), tmp_path)
    assert found["W1"].gram().sums.any() and found["W2"].gram().sums.any()


def test_weights_in_a_loop_keep_codes_without_data(tmp_path: Path) -> None:
    text = """m (int64 n, bool c, float[N, 96] x) => (float[N, 96] y) {
        y = Loop (n, c, x) <body = b (int64 i, bool k, float[N, 96] s) => (bool k2, float[N, 96] t)
            { k2 = Identity(k) h = MatMul(s, W) t = Tanh(h) }> }"""
    data = [{"n": np.array(2), "c": np.array(True), **sample} for sample in samples(3)]
    assert not needed(job_of(tiny.model(text, {"W": tiny.normal(96, 96)}), tmp_path, data))


@pytest.mark.parametrize("transpose", [0, 1])
def test_a_gemm_whose_input_is_turned(transpose: int, tmp_path: Path) -> None:
    shape = "96, 40" if transpose else "40, 96"
    gemm = f"Gemm <transA = {transpose}, transB = 1, alpha = 0.5> (x, W)"
    text = f"m (float[{shape}] x) => (float[40, 64] y) {{ y = {gemm} }}"
    data = [{"x": s["x"].T.copy() if transpose else s["x"]} for s in samples(3)]
    job = job_of(tiny.model(text, {"W": tiny.normal(64, 96)}), tmp_path, data)
    x = np.concatenate([s["x"].T if transpose else s["x"] for s in job.data.split(6)[0]])  # type: ignore[union-attr]
    np.testing.assert_allclose(seen(job, tmp_path)["W"].gram().sums[0], x.T @ x, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        pytest.param((64, 4, 3, 3), "", id="plain"),
        pytest.param((64, 4, 3, 2), "<pads = [1, 0, 2, 1], strides = [2, 1]>", id="pads-strides"),
        pytest.param((64, 2, 3, 3), "<group = 2, dilations = [2, 1]>", id="groups-dilations"),
        pytest.param((64, 4, 2, 3), '<auto_pad = "SAME_UPPER">', id="same-upper"),
        pytest.param((64, 4, 2, 3), '<auto_pad = "SAME_LOWER">', id="same-lower"),
        pytest.param((32, 1, 3, 3), "<group = 32>", id="depthwise"),
        pytest.param((64, 4, 5), "<pads = [2, 2]>", id="1d"),
        pytest.param((64, 4, 2, 2, 2), "<strides = [1, 2, 1]>", id="3d"),
    ],
)
def test_patches_times_the_kernel_are_the_convolution(shape: tuple[int, ...], attributes: str, tmp_path: Path) -> None:
    groups = int(re.sub(r".*group = (\d+).*|.*", r"\1", attributes) or 1)
    x = tiny.normal(2, shape[1] * groups, *(9, 8, 7)[: len(shape) - 2], seed=3)
    ranks = ", ".join("A" for _ in shape)
    text = f"m (float[{ranks}] x) => (float[{ranks}] y) {{ y = Conv {attributes} (x, W) }}"
    proto = tiny.model(text.replace("A,", "?,").replace("A]", "?]"), {"W": tiny.normal(*shape)})
    (found,) = layer_inputs(open_job(tiny.save(proto, tmp_path), Recipe("int8"), "onnx").model)["W"]
    assert isinstance(found.rows, Patches)
    w = tiny.normal(*shape).reshape(groups, shape[0] // groups, -1)
    got = np.einsum("rgk,gok->rgo", found.rows(x), w).reshape(-1, shape[0])
    wanted = np.moveaxis(run(tmp_path / "model.onnx", {"x": x}), 1, -1).reshape(-1, shape[0])
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(), (64,), (3, 16), (1, 2, 9, 9), (1, 3, 9), (1, 3, 2, 9)])
@pytest.mark.parametrize(
    "rows", [Rows(32), Rows(32, is_last=False), Patches(3, (3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 1)]
)
def test_an_array_that_a_layer_cannot_multiply_is_refused(rows: Rows | Patches, shape: tuple[int, ...]) -> None:
    """Shapes that a model declares hide it until it is run."""
    with pytest.raises(BadModel, match=re.escape(f"array of shape {[*shape]}")):
        rows(np.zeros(shape, np.float32))


@pytest.mark.parametrize("target", ["ort-cpu", "onnx", "onnxq"])
@pytest.mark.parametrize("scheme", ["int4", "nf4", "uint4"])
def test_a_model_quantized_with_data_is_nearer_to_float(scheme: str, target: str, tmp_path: Path) -> None:
    model, data = tiny.save(two_layers(), tmp_path), samples()
    other = {"x": samples(20)[-1]["x"]}
    found = []
    for algorithm in ("mse", None):
        recipe = Recipe(scheme, algorithm=algorithm, accuracy_level=0)
        result = quantize(model, tmp_path / f"{algorithm}.onnx", recipe, target=target, data=data, check=False)
        found.append(tiny.sqnr(run(model, other), run(result.output, other)))
    assert found[1] > found[0] + 1.5


def test_a_convolution_is_nearer_too(tmp_path: Path) -> None:
    text = "m (float[1, 8, 12, 12] x) => (float[1, 64, 10, 10] y) { y = Conv(x, W) }"
    r = np.random.default_rng(0)
    smooth = lambda: np.cumsum(r.standard_normal((1, 8, 12, 12)), axis=3).astype(np.float32)  # noqa: E731
    model = tiny.save(tiny.model(text, {"W": tiny.normal(64, 8, 3, 3)}), tmp_path)
    data, other = [{"x": smooth()} for _ in range(12)], {"x": smooth()}
    found = []
    for algorithm in ("squant", "gptq"):
        recipe = Recipe("int8", algorithm=algorithm)
        result = quantize(model, tmp_path / f"{algorithm}.onnx", recipe, target="onnx", data=data, check=False)
        found.append(tiny.sqnr(run(model, other), run(result.output, other)))
    assert found[1] > found[0] + 2


def test_gptq_without_data_is_refused(tmp_path: Path) -> None:
    model = tiny.save(two_layers(), tmp_path)
    with pytest.raises(BadRecipe, match="'gptq' needs calibration data: give --data"):
        quantize(model, tmp_path / "out.onnx", Recipe("int4", algorithm="gptq"))
    done = CliRunner().invoke(
        main, ["quantize", str(model), "-w", "int4", "--algorithm", "gptq", "-o", str(tmp_path / "o.onnx")]
    )
    assert done.exit_code == 1 and "give --data" in done.output


def test_the_same_data_give_the_same_file(tmp_path: Path) -> None:
    model, data = tiny.save(two_layers(), tmp_path), samples()
    for name in "ab":
        quantize(model, tmp_path / f"{name}.onnx", Recipe("int4"), target="onnxq", data=data, check=False)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_rule_names_the_algorithm_of_some_nodes(tmp_path: Path) -> None:
    model, data = tiny.save(two_layers(), tmp_path), samples()
    files = {}
    for words in (("rtn", "rtn"), ("rtn", "gptq"), ("gptq", "rtn")):
        plan = open_job(model, Recipe("int4"), "onnxq").plan
        rules = tuple(parse_set(f"{node}=int4+{word}") for node, word in zip(plan.choices, words, strict=True))
        recipe = Recipe("int4", rules=rules)
        output = quantize(
            model, tmp_path / "out.onnx", recipe, target="onnxq", data=data, check=False, force=True
        ).output
        files[words] = {i.name: numpy_helper.to_array(i) for i in onnx.load(output).graph.initializer}
    plain, second, first = files.values()
    for name in plain:
        assert np.array_equal(plain[name], second[name]) == ("W2" not in name), name
        assert np.array_equal(plain[name], first[name]) == ("W1" not in name), name


def test_a_rule_with_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(BadRecipe, match="unknown algorithm 'gpqt'; choose one of"):
        parse_set("*=int4+gpqt")


def test_a_part_of_a_folder_without_data_takes_codes_without_data() -> None:
    recipe = Recipe("w4a16", (parse_set("a=int3+gptq"), parse_set("b=w8a8"), parse_set("c=int4+rtn")), algorithm="gptq")
    assert recipe_of("model", ["model"], recipe, has_data=True) == recipe
    without = recipe_of("model", ["model"], recipe, has_data=False)
    assert without.algorithm is None
    assert [rule.set for rule in without.rules] == ["int3", "w8a8-dynamic", "int4+rtn"]


def test_evidence_is_left_and_taken_again(tmp_path: Path) -> None:
    model, data, kept = tiny.save(two_layers(), tmp_path), samples(), tmp_path / "evidence.npz"
    options = {"target": "onnxq", "data": data, "check": False, "evidence": kept}
    first = quantize(model, tmp_path / "a.onnx", Recipe("int4"), **options).output.read_bytes()
    made = kept.read_bytes()
    assert quantize(model, tmp_path / "b.onnx", Recipe("int4"), **options).output.read_bytes() == first
    assert quantize(model, tmp_path / "c.onnx", Recipe("int3"), **options).output.is_file()
    assert kept.read_bytes() == made
    with pytest.raises(BadRecipe, match="is of other data; delete the file or give another --evidence"):
        quantize(model, tmp_path / "d.onnx", Recipe("int4"), **options | {"data": samples(5)})
    tiny.save(tiny.model(BODY, {"W1": tiny.normal(96, 128, seed=7), "W2": tiny.normal(128, 64)}), tmp_path)
    with pytest.raises(BadRecipe, match="is of another model"):
        quantize(model, tmp_path / "d.onnx", Recipe("int4"), **options)
    assert not (tmp_path / "d.onnx").exists()


def test_evidence_of_fewer_layers_is_refused(tmp_path: Path) -> None:
    model, data, kept = tiny.save(two_layers(), tmp_path), samples(), tmp_path / "evidence.npz"
    options = {"target": "onnxq", "data": data, "check": False, "evidence": kept}
    node = next(iter(open_job(model, Recipe("int4"), "onnxq").plan.choices))
    quantize(model, tmp_path / "a.onnx", Recipe("int4", (parse_set(f"{node}=int8"),)), **options)
    with pytest.raises(BadRecipe, match="lacks 'x Rows"):
        quantize(model, tmp_path / "b.onnx", Recipe("int4"), **options)


@pytest.mark.parametrize("spoil", ["cut", "text", "shape", "index", "nothing"])
def test_damaged_evidence_is_one_sentence(spoil: str, tmp_path: Path) -> None:
    model, data, kept = tiny.save(two_layers(), tmp_path), samples(), tmp_path / "evidence.npz"
    options = {"target": "onnxq", "data": data, "check": False, "evidence": kept}
    quantize(model, tmp_path / "a.onnx", Recipe("int4"), **options)
    with np.load(kept) as file:
        arrays = dict(file)
    index = json.loads(arrays["onnxq.json"].tobytes())
    if spoil == "cut":
        kept.write_bytes(kept.read_bytes()[:-200])
    elif spoil in ("text", "nothing"):
        kept.write_text("evidence" if spoil == "text" else "")
    else:
        changed = (
            {"0.gram": np.zeros((1, 4, 4), np.float32)}
            if spoil == "shape"
            else {"onnxq.json": np.frombuffer(json.dumps(index | {"inputs": [3]}).encode(), np.uint8)}
        )
        np.savez(kept, **arrays | changed)
    with pytest.raises(BadRecipe, match=r"^the evidence '.*evidence.npz' (is not|lacks|cannot)[^\n]*$"):
        quantize(model, tmp_path / "b.onnx", Recipe("int4"), **options)
    assert not (tmp_path / "b.onnx").exists()


def test_nothing_is_written_over_by_evidence(tmp_path: Path) -> None:
    model, data = tiny.save(two_layers(), tmp_path), samples()
    np.savez(tmp_path / "data.npz", x=np.stack([s["x"] for s in data]))
    for evidence in (model, tmp_path / "data.npz"):
        before = evidence.read_bytes()
        with pytest.raises(OnnxqError):
            quantize(model, tmp_path / "o.onnx", "int4", data=tmp_path / "data.npz", evidence=evidence, force=True)
        assert evidence.read_bytes() == before
    with pytest.raises(BadOutput, match="choose another name"):
        quantize(model, tmp_path / "o.npz.onnx", "int4", data=data, evidence=tmp_path / "o.npz.onnx")


def test_evidence_that_nothing_is_chosen_by_is_said(tmp_path: Path) -> None:
    model = tiny.save(two_layers(), tmp_path)
    options = {"target": "onnxq", "evidence": tmp_path / "e.npz", "check": False}
    with pytest.warns(UnusedOption, match="evidence changes nothing: int4 chooses no codes by data here"):
        quantize(model, tmp_path / "a.onnx", Recipe("int4", algorithm="mse"), data=samples(), **options)
    assert not (tmp_path / "e.npz").exists()
    with pytest.raises(BadRecipe, match=r"there is no evidence '.*e.npz': gather it by 'onnxq calibrate --evidence'"):
        quantize(model, tmp_path / "b.onnx", Recipe("int4"), **options)


def test_a_file_of_ranges_that_nothing_goes_by_is_said(tmp_path: Path) -> None:
    (tmp_path / "r.ranges").write_text("rubbish")
    with pytest.warns(
        UnusedOption, match=r"the file '.*r\.ranges' changes nothing: int4 needs no activation ranges here"
    ) as caught:
        quantize(tiny.save(two_layers(), tmp_path), tmp_path / "a.onnx", "int4", ranges=tmp_path / "r.ranges")
    assert [each.filename for each in caught] == [__file__]


def test_what_has_no_effect_in_a_recipe_is_said_of_the_line_that_asks_for_it(tmp_path: Path) -> None:
    model, folder = tiny.save(two_layers(), tmp_path), tmp_path / "folder"
    folder.mkdir()
    tiny.save(two_layers(), folder)
    for call, path in ((quantize, model), (quantize_folder, folder)):
        with pytest.warns(UnusedOption, match="reduce_range changes nothing") as caught:
            call(path, tmp_path / f"{path.stem}.out.onnx", Recipe("int4", reduce_range=True))
        assert {each.filename for each in caught} == {__file__}


def test_a_bottleneck_of_few_numbers_is_looked_at_and_a_depthwise_kernel_is_not(tmp_path: Path) -> None:
    text = "m (float[N, 96] x) => (float[N, 64] y) { h = MatMul(x, W) y = MatMul(h, V) }"
    job = job_of(tiny.model(text, {"W": tiny.normal(96, 8), "V": tiny.normal(8, 64)}), tmp_path, samples(3))
    assert set(needed(job)) == {"W", "V"}
    text = "m (float[1, 32, 9, 9] x) => (float[1, 32, 7, 7] y) { y = Conv <group = 32> (x, D) }"
    data = [{"x": tiny.normal(1, 32, 9, 9, seed=i)} for i in range(3)]
    proto = tiny.model(text, {"D": tiny.normal(32, 1, 3, 3)})
    job = open_job(tiny.save(proto, tmp_path), Recipe("int8", algorithm="gptq"), "onnx", data)
    assert not needed(job)


def test_thorough_effort_learns_how_kernels_are_rounded(tmp_path: Path) -> None:
    text = "m (float[1, 16, 9, 9] x) => (float[1, 64, 7, 7] y) { y = Conv (x, K) }"
    model = tiny.save(tiny.model(text, {"K": tiny.normal(64, 16, 3, 3)}), tmp_path)
    r = np.random.default_rng(1)
    mix = r.standard_normal((16, 16)) * r.gamma(1, 1, 16)
    data = [
        {"x": np.einsum("nchw,cd->ndhw", tiny.normal(1, 16, 9, 9, seed=i), mix).astype(np.float32)} for i in range(20)
    ]
    notes = {}
    for effort in ("normal", "thorough"):
        recipe = Recipe("int4", effort=effort, min_sqnr=float("-inf"))
        result = quantize(model, tmp_path / f"{effort}.onnx", recipe, data=data, check=False)
        (notes[effort],) = (note for note in result.notes if "algorithms by output channel" in note)
    assert "adaround" in notes["thorough"] and "adaround" not in notes["normal"]
