"""Models without data are run on many kinds of inputs, through every branch, and judged by the worst."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import onnxq
from onnxq.checking.models import Check
from onnxq.cli import main
from onnxq.made_up import _never_run, make_up, sounds
from onnxq.model.load import load_model
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.runtime.session import Session
from onnxq.samples.trials import Trials

pytestmark = pytest.mark.usefixtures("quick")
HEADS, SIZE, WORDS = 2, 16, 50
WIDTH = HEADS * SIZE
W = tiny.normal(64, 32)


def made_up(path: Path) -> Trials:
    model = load_model(path)
    UniqueNames()(model)
    return make_up(model, Session(path))


def checked(path: Path, scheme: str, **options: float) -> Check:
    recipe = onnxq.Recipe(scheme, keep_slow=True, **{"min_sqnr": float("-inf")} | options)  # type: ignore[arg-type]
    check = onnxq.quantize(path, path.with_name("q.onnx"), recipe, force=True).check
    assert check is not None
    return check


def decoder(folder: Path, total: str, window: int = 1 << 30) -> Path:
    """One layer of attention over a cache of so many tokens, with a mask over past and present whose size is called
    `total`."""
    text = f"""
    g (int64[batch, sequence_length] input_ids, int64[batch, "{total}"] attention_mask,
       int64[batch, sequence_length] position_ids,
       float[batch, {HEADS}, past_sequence_length, {SIZE}] past_key_values_0_key,
       float[batch, {HEADS}, past_sequence_length, {SIZE}] past_key_values_0_value)
    => (float[batch, sequence_length, {WORDS}] logits, float[batch, {HEADS}, t, {SIZE}] present_0_key,
        float[batch, {HEADS}, t, {SIZE}] present_0_value) {{
        words = Gather(table, input_ids)
        where = Gather(places, position_ids)
        x = Add(words, where)
        q0 = MatMul(x, wq)
        k0 = MatMul(x, wk)
        v0 = MatMul(x, wv)
        q1 = Reshape(q0, split)
        k1 = Reshape(k0, split)
        v1 = Reshape(v0, split)
        q = Transpose<perm = [0, 2, 1, 3]>(q1)
        k2 = Transpose<perm = [0, 2, 1, 3]>(k1)
        v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
        keys = Concat<axis = 2>(past_key_values_0_key, k2)
        values = Concat<axis = 2>(past_key_values_0_value, v2)
        present_0_key = Slice(keys, oldest, newest, length)
        present_0_value = Slice(values, oldest, newest, length)
        kt = Transpose<perm = [0, 1, 3, 2]>(keys)
        scores = MatMul(q, kt)
        seen = Cast<to = 1>(attention_mask)
        hidden = Sub(one, seen)
        low = Mul(hidden, large)
        low4 = Unsqueeze(low, axes)
        masked = Sub(scores, low4)
        weights = Softmax(masked)
        mixed = MatMul(weights, values)
        back = Transpose<perm = [0, 2, 1, 3]>(mixed)
        flat = Reshape(back, join)
        out = MatMul(flat, wo)
        y = Add(out, x)
        logits = MatMul(y, head)
    }}"""
    shapes = dict.fromkeys(("wq", "wk", "wv", "wo"), (WIDTH, WIDTH)) | {"head": (WIDTH, WORDS)}
    constants = {name: tiny.normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    rng = np.random.default_rng(1)
    constants["table"] = rng.standard_normal((WORDS, WIDTH)).astype(np.float32)
    constants["places"] = rng.standard_normal((256, WIDTH)).astype(np.float32)
    constants |= {"one": np.float32([1]), "large": np.float32([1e4]), "axes": np.int64([1, 2])}
    constants |= {"oldest": np.int64([-window]), "newest": np.int64([1 << 40]), "length": np.int64([2])}
    constants |= {"split": np.int64([0, 0, HEADS, SIZE]), "join": np.int64([0, 0, WIDTH])}
    made = tiny.model(text.replace(f'"{total}"', "total_mask"), constants)
    made.graph.input[1].type.tensor_type.shape.dim[1].dim_param = total
    return tiny.save(made, folder)


@pytest.mark.parametrize("total", ["past_sequence_length + sequence_length", "total_sequence_length"])
def test_a_decoder_with_a_past_is_run_at_many_lengths(tmp_path: Path, total: str) -> None:
    path = decoder(tmp_path, total)
    trials = made_up(path)
    shapes = {(feed["input_ids"].shape, feed["past_key_values_0_key"].shape[2]) for feed in trials.feeds}
    assert shapes >= {((1, 128), 0), ((1, 12), 0), ((1, 1), 0), ((2, 12), 0), ((1, 1), 12), ((1, 1), 14), ((2, 1), 12)}
    for feed in trials.feeds:
        past = feed["past_key_values_0_key"].shape[2]
        assert feed["attention_mask"].shape[1] == past + feed["input_ids"].shape[1]
        if feed["attention_mask"].all():
            assert feed["position_ids"][0, 0] == past
    # The past is what the model itself left, not noise.
    first = next(feed for feed in trials.feeds if feed["past_key_values_0_key"].shape[2] == 14)
    again = next(feed for feed in trials.feeds if feed["past_key_values_0_key"].shape[2] == 12)
    np.testing.assert_array_equal(first["past_key_values_0_key"][:, :, :12], again["past_key_values_0_key"])
    check = checked(path, "w4a16")
    assert not check.proves and check.is_known and len(check.kinds) >= 4
    assert check.sqnr == min(check.kinds.values())


@pytest.mark.parametrize("window", [5, 200])
def test_a_decoder_that_forgets_is_run_on_what_it_kept(tmp_path: Path, window: int) -> None:
    """A cache of the last few tokens, as of sliding attention: the past is as long as presents, not as texts."""
    path = decoder(tmp_path, "past_sequence_length + sequence_length", window)
    pasts = set()
    for feed in made_up(path).feeds:
        past = feed["past_key_values_0_key"].shape[2]
        assert feed["attention_mask"].shape[1] == past + feed["input_ids"].shape[1]
        pasts.add(past)
    assert max(pasts) == min(window, 14) and 0 in pasts
    check = checked(path, "w4a16")
    assert check.is_known and len(check.kinds) >= 4


def merged(folder: Path, *, by: str = "flag") -> Path:
    """An If on an input: in the branch for a first step every block of weights has one a hundred times as large,
    and meets nothing but zeros, so that the others are left few of the levels that 4 bits have."""

    def branch(name: str, w: np.ndarray) -> onnx.GraphProto:
        hot = np.ones(WIDTH, np.float32)
        hot[0] = 0.0
        nodes = [
            helper.make_node("Mul", ["x", f"{name}_hot"], [f"{name}_m"]),
            helper.make_node("MatMul", [f"{name}_m", f"{name}_w"], [f"{name}_y"], name=f"{name}_product"),
        ]
        w = w.copy()
        w[0] *= 100.0 if name == "first" else 1.0
        constants = [numpy_helper.from_array(w, f"{name}_w"), numpy_helper.from_array(hot, f"{name}_hot")]
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, ["batch", "seq", WIDTH])
        return helper.make_graph(nodes, name, [], [out], constants)

    dtype = TensorProto.BOOL if by == "flag" else TensorProto.INT64
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq", WIDTH]),
        helper.make_tensor_value_info(by, dtype, [1]),
    ]
    condition, nodes = by, []
    if by != "flag":
        nodes = [helper.make_node("Equal", [by, "rate"], ["condition"])]
        condition = "condition"
    w = tiny.normal(WIDTH, WIDTH)
    branches = {"then_branch": branch("later", w), "else_branch": branch("first", w)}
    nodes.append(helper.make_node("If", [condition], ["y"], name="choose", **branches))
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq", WIDTH])
    rates = [numpy_helper.from_array(np.int64([16000]), "rate")] if by != "flag" else []
    made = helper.make_graph(nodes, "g", inputs, [out], rates)
    return tiny.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder)


@pytest.mark.parametrize("by", ["flag", "rate_of_samples"])
def test_both_branches_are_run_and_the_worse_one_is_reported(tmp_path: Path, by: str) -> None:
    path = merged(tmp_path, by=by)
    trials = made_up(path)
    assert len({int(feed[by][0]) for feed in trials.feeds}) == 2
    check = checked(path, "w4a16")
    a, b = Session(path), Session(path.with_name("q.onnx"))
    decibels = []
    for taken in (1, 0) if by == "flag" else (16000, 8000):
        switch = np.array([taken], a.inputs[1].dtype)
        feed = {"x": np.random.default_rng(5).standard_normal((1, 32, WIDTH)).astype(np.float32), by: switch}
        decibels.append(tiny.sqnr(a.run(feed)[0], b.run(feed)[0]))
    assert decibels[0] > decibels[1] + 10  # or the test shows nothing
    assert check.sqnr < decibels[1] + 3


def test_a_branch_that_the_data_never_take_is_made_up(tmp_path: Path) -> None:
    path = merged(tmp_path)
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((1, 32, WIDTH)).astype(np.float32), "flag": np.array([True])} for _ in range(8)]
    recipe = onnxq.Recipe("w4a16", min_sqnr=float("-inf"))
    check = onnxq.quantize(path, tmp_path / "q.onnx", recipe, data=data).check
    assert check is not None and check.proves
    assert any("the data never take the else-branch of If 'choose'" in note for note in check.notes)
    (other,) = (found for label, found in check.kinds.items() if label.startswith("made up"))
    assert check.sqnr == other < check.kinds["data"] - 10


@pytest.mark.parametrize("others", [0, 1, 3, 4])
def test_branches_that_nothing_takes_are_told_with_what_to_do(others: int) -> None:
    (note,) = _never_run(frozenset((f"if {number}", "then_branch") for number in range(others + 1)))
    one = "takes it: the then-branch of If 'if 0'; give data that take it"
    assert note.endswith("; give data that take them" if others else one)
    assert ("and 2 others; give" in note) == (others == 4) and ("and 1 other; give" in note) == (others == 3)


def listener(folder: Path) -> Path:
    """Energies of a sound in bands, of which the low ones, where voices and hum are strong, meet weights of zero."""
    text = """
    g (float[batch, samples] x) => (float[batch, frames, 8] y) {
        long = Unsqueeze(x, axes)
        bands = Conv<strides = [160], kernel_shape = [320]>(long, waves)
        power = Mul(bands, bands)
        turned = Transpose<perm = [0, 2, 1]>(power)
        h = MatMul(turned, w1)
        n = ReduceL2<axes = [2], keepdims = 1>(h)
        m = Add(n, little)
        y0 = Div(h, m)
        y = MatMul(y0, w2)
    }"""
    t = np.arange(320) / 16000
    window = np.hanning(320)
    waves = np.array([window * np.sin(2 * np.pi * f * t) for f in np.linspace(100, 7500, 64)])[:, None] / 10
    w1 = tiny.normal(64, 64)
    w1[:24] = 0
    constants = {"waves": waves.astype(np.float32), "axes": np.int64([1]), "little": np.float32([1e-12])}
    return tiny.save(tiny.model(text, constants | {"w1": w1, "w2": tiny.normal(64, 8, seed=1)}), folder)


def on_a_hum(path: Path, output: Path) -> float:
    """dB on a hum above faint noise: neither is a sound that is made up."""
    rng, t = np.random.default_rng(3), np.arange(16000) / 16000
    x = 0.3 * np.sin(2 * np.pi * 300 * t) + 0.2 * np.sin(2 * np.pi * 700 * t) + 0.01 * rng.standard_normal(16000)
    feed = {"x": x[None].astype(np.float32)}
    return tiny.sqnr(Session(path).run(feed)[0], Session(output).run(feed)[0])


def test_noise_flatters_a_model_of_sounds_and_other_sounds_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, output = listener(tmp_path), tmp_path / "q.onnx"
    check = checked(path, "w8a8-dynamic")
    assert {"voice", "a tone", "noise", "silence and a burst"} <= set(check.kinds)
    assert on_a_hum(path, output) > 20
    monkeypatch.setattr(sounds, "SOUNDS", {"noise": sounds.noise})
    flattered = checked(path, "w8a8-dynamic")
    assert flattered.sqnr > 25
    assert on_a_hum(path, output) < flattered.sqnr - 15


def unrunnable(folder: Path) -> Path:
    """Runs only at a size that nobody guesses."""
    text = "g (float[N, T] x) => (float[N, 16] y) { y = MatMul(x, w) }"
    return tiny.save(tiny.model(text, {"w": tiny.normal(77, 16)}), folder)


@pytest.mark.parametrize(
    ("options", "exit_code", "said"),
    [
        ([], 3, "nobody knows how good it is"),
        (["--min-sqnr", "10"], 3, "nobody knows how good it is"),
        (["--no-check"], 0, ""),
        (["--no-check", "--min-sqnr", "20"], 3, "--min-sqnr was not checked, because of --no-check"),
    ],
    ids=["plain", "floor", "unchecked", "unchecked-floor"],
)
def test_what_nobody_could_run_ends_with_its_own_status(
    tmp_path: Path, options: list[str], exit_code: int, said: str
) -> None:
    path, output = unrunnable(tmp_path), tmp_path / "q.onnx"
    result = CliRunner().invoke(main, ["quantize", str(path), "-o", str(output), "-s", "w8a16", *options])
    assert result.exit_code == exit_code
    assert output.is_file()
    assert said in result.stderr and bool(result.stderr) == bool(said)
    assert ("nobody knows how good it is" in result.stdout) == (not {"--no-check"} & set(options))


def test_made_up_inputs_are_called_no_proof(tmp_path: Path) -> None:
    path = tiny.save(
        tiny.model("g (float[N, 64] x) => (float[N, 16] y) { y = MatMul(x, w) }", {"w": tiny.normal(64, 16)}), tmp_path
    )
    words = ["quantize", str(path), "-o", str(tmp_path / "q.onnx"), "-s", "w8a16", "--force"]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 0 and "not proven" in found.stdout and "no data" in found.stdout
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).standard_normal((8, 1, 64)).astype(np.float32))
    assert "not proven" not in CliRunner().invoke(main, [*words, "--data", str(tmp_path / "d.npz")]).stdout
    table = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert table["check"]["proves"] is False and len(table["check"]["kinds"]) > 2


@pytest.mark.parametrize("copies", [12, 11], ids=["all alike", "all but one"])
def test_data_that_hold_one_sample_again_and_again_prove_nothing(copies: int, tmp_path: Path) -> None:
    path = tiny.save(tiny.model("g (float[n, 64] x) => (float[n, 32] y) { y = MatMul(x, w) }", {"w": W}), tmp_path)
    data = [{"x": tiny.normal(1, 64, seed=1 if i < copies else 2)} for i in range(12)]
    recipe = onnxq.Recipe("w8a8", keep_slow=True)
    check = onnxq.quantize(path, tmp_path / "q.onnx", recipe, data=data, force=True).check
    assert check is not None
    assert any("is among the rest of them, number for number" in note for note in check.notes)
    data = [{"x": tiny.normal(1, 64, seed=i % 10)} for i in range(12)]
    check = onnxq.quantize(path, tmp_path / "q.onnx", recipe, data=data, force=True).check
    assert check is not None and not any("number for number" in note for note in check.notes)
