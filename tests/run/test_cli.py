"""The commands as a user types them: what they print, write and return."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import onnx
import pytest
import tiny
from click.testing import CliRunner, Result
from tiny import normal

import onnxq
from onnxq.calibration import find_ranges
from onnxq.calibration.find_ranges import Effort
from onnxq.cli import main
from onnxq.cli._given import effort_of
from onnxq.recipe import Recipe
from onnxq.samples.sampling import HELD_BACK
from onnxq.schemes import SCHEMES

MODELS = Path(__file__).parents[2] / "models"
DIGITS, DATA = MODELS / "digits_cnn.onnx", MODELS / "digits_cnn_calibration.npz"
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are run in an empty folder, on a terminal wide enough for any table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")


def run(*words: object, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == exit_code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_one_command_without_options(tmp_path: Path) -> None:
    """The output is named after model and scheme, and lies in the current folder."""
    out = run("quantize", DIGITS).stdout
    assert [path.name for path in tmp_path.iterdir()] == ["digits_cnn.w4a16.onnx"]
    assert out.startswith("digits_cnn.w4a16.onnx: w4a16 (auto: no calibration data) for ort-cpu")
    for word in ("int8 stored", "of float", "dB SQNR", "no data was given", "not proven"):
        assert word in out


def test_calibration_data_make_it_int8() -> None:
    out = run("quantize", DIGITS, "--data", DATA, "--keep-slow", "--limit", 16).stdout
    assert out.startswith("digits_cnn.w8a8.onnx: w8a8 (auto: there is calibration data) for ort-cpu")
    assert "5 QLinearConv" in out


def test_json_and_report_are_the_same(tmp_path: Path) -> None:
    """Standard output is JSON and nothing else."""
    out = run("quantize", DIGITS, "-s", "w4a16", "-o", "q.onnx", "--json", "--report", "report.json").stdout
    table = json.loads(out)
    assert table == json.loads((tmp_path / "report.json").read_text())
    assert (table["output"], table["scheme"], table["target"]) == ("q.onnx", "w4a16", "ort-cpu")
    assert table["bytes_after"] == (tmp_path / "q.onnx").stat().st_size
    assert table["check"]["sqnr"] > 19.5
    assert table["check"]["kernels"] == {"MatMulNBits": 1}
    assert {"node", "op", "method", "format", "block", "elements", "reason", "half", "shares"} == set(table["nodes"][0])


def test_plans_can_be_edited(tmp_path: Path) -> None:
    run("plan", DIGITS, "-s", "w4a16", "-o", "plan.json")
    table = json.loads((tmp_path / "plan.json").read_text())
    (product,) = (entry for entry in table["choices"] if entry["method"] == "packed")
    product |= {"format": "int8", "block": 16}
    (tmp_path / "plan.json").write_text(json.dumps(table))
    done = json.loads(run("quantize", DIGITS, "-s", "w4a16", "--plan", "plan.json", "-o", "q.onnx", "--json").stdout)
    assert done["nodes"] == table["choices"]
    (node,) = (node for node in onnx.load(tmp_path / "q.onnx").graph.node if node.op_type == "MatMulNBits")
    assert {a.name: a.i for a in node.attribute if a.name in ("bits", "block_size")} == {"bits": 8, "block_size": 16}


def test_plan_lists_nodes_and_writes_nothing(tmp_path: Path) -> None:
    grouped, single = run("plan", DIGITS).stdout, run("plan", DIGITS, "--nodes").stdout
    plan = json.loads(run("plan", DIGITS, "--json").stdout)
    assert len(grouped.splitlines()) < len(single.splitlines()) == 3 + len(plan["choices"])
    assert all(entry["node"] in single for entry in plan["choices"])
    assert list(tmp_path.iterdir()) == []


def test_ranges_are_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run("calibrate", DIGITS, "--data", DATA, "-o", "ranges.json").stdout
    saved = json.loads((tmp_path / "ranges.json").read_text())
    assert out == f"ranges.json: {len(saved['values'])} ranges by {saved['method']}, 0 without\n"
    monkeypatch.setattr(find_ranges, "observe", None)
    run("quantize", DIGITS, "--data", DATA, "--ranges", "ranges.json", "--keep-slow", "-o", "q.onnx")
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}


@pytest.mark.sweep
def test_shards_merge_to_the_ranges_of_one_run_or_of_several_processes(tmp_path: Path) -> None:
    words = ("calibrate", DIGITS, "--data", DATA, "--calibration", "mse", "--limit", 30)
    run(*words, "-o", "whole.ranges")
    for number in (1, 2, 3):
        run(*words, "--shard", f"{number}/3", "-o", f"part{number}.ranges")
    run(*words, "--jobs", 2, "-o", "jobs.ranges")
    run("calibrate", "--merge", *sorted(tmp_path.glob("part*")), "-o", "merged.ranges", "--calibration", "mse")
    run(*words, "--max-memory", "100kB", "--checkpoint-every", "5", "-o", "passes.ranges")
    saved = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.ranges")}
    for name in ("merged", "jobs", "passes"):
        assert saved[name]["values"] == saved["whole"]["values"], name
        assert saved[name]["data"] == saved["whole"]["data"]
    assert saved["part1"]["values"] != saved["whole"]["values"]
    assert not list(tmp_path.glob("*.partial*"))
    data = ("--data", DATA, "--limit", 30)
    out = run(
        "quantize", DIGITS, *data, "--ranges", "merged.ranges", "-s", "w8a8", "--keep-slow", "-o", "q.onnx"
    ).stdout
    assert "of activations, by calibration" in out
    run("quantize", DIGITS, *data, "--ranges", "part1.ranges", "-s", "w8a8", "-o", "r.onnx", exit_code=1)


def test_several_processes_say_what_is_wrong_with_the_data(tmp_path: Path) -> None:
    (tmp_path / "samples.py").write_text(
        "import numpy as np\ndef wrong():\n    print('hello')\n    for i in range(9):\n"
        "        yield {'image': np.zeros((1, 3, 32, 32 + i // 8), np.float32)}\n"
    )
    name = onnx.load(DIGITS).graph.input[0].name
    source = (tmp_path / "samples.py").read_text().replace("image", name)
    shape = [d.dim_value for d in onnx.load(DIGITS).graph.input[0].type.tensor_type.shape.dim]
    (tmp_path / "samples.py").write_text(source.replace("(1, 3, 32, 32 + i // 8)", f"(1, {shape[1]}, 32, 32 + i // 8)"))
    words = ("calibrate", DIGITS, "--data", "samples:wrong", "-s", "w8a8", "-o", "r.ranges")
    one, two = (run(*words, "--jobs", jobs, exit_code=1) for jobs in (1, 2))
    assert one.stderr == two.stderr
    assert "sample 8: " in one.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shard", "0/3"), "--shard: invalid part '0/3'"),
        (("--shard", "4/3"), "--shard: invalid part '4/3'"),
        (("--shard", "1/" + "9" * 5000), "--shard: invalid part '1/999"),
        (("--shard", "1/2", "--jobs", 2), "give --shard or --jobs"),
        (("--max-memory", "lots"), "--max-memory: invalid size 'lots'; example: 200MB"),
        (("--checkpoint-every", "0"), "--checkpoint-every: invalid interval '0'"),
        (("--checkpoint-every", "1.5"), "--checkpoint-every: invalid interval '1.5'"),
        ((DIGITS,), "one model at a time, not 2"),
    ],
    ids=str,
)
def test_words_of_calibrate_that_mean_nothing(words: tuple[object, ...], message: str) -> None:
    assert message in run("calibrate", DIGITS, "--data", DATA, "-o", "r.ranges", *words, exit_code=1).stderr


def test_files_that_are_no_shards_are_not_merged() -> None:
    run("calibrate", DIGITS, "--data", DATA, "--limit", 8, "-o", "whole.ranges")
    wrong = run("calibrate", "--merge", "whole.ranges", "-o", "m.ranges", exit_code=1).stderr
    assert "'whole.ranges' is not a shard" in wrong


def test_a_seed_draws_samples(tmp_path: Path) -> None:
    words = ("calibrate", DIGITS, "--data", DATA, "--limit", 8, "--calibration", "minmax")
    for name, seed in (("a", ()), ("b", ("--seed", 1)), ("c", ("--seed", 1)), ("d", ("--seed", 2))):
        run(*words, *seed, "-o", f"{name}.ranges")
    a, b, c, d = (json.loads((tmp_path / f"{name}.ranges").read_text())["values"] for name in "abcd")
    assert b == c != a != d != b


def test_rules_of_the_command_line_win_over_the_recipe(tmp_path: Path) -> None:
    text = "g (float[4,64] x) => (float[4,64] z) { [first] y = MatMul(x, v)  [second] z = MatMul(y, w) }"
    model = tiny.save(tiny.model(text, {"v": normal(64, 64), "w": normal(64, 64, seed=1)}), tmp_path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('scheme = "w8a16"\nblock_size = 64\n[[rule]]\nnodes = "first"\nset = "nf4"\n')

    def labels(*options: str) -> list[str]:
        plan = json.loads(run("plan", model, "--recipe", recipe, "--json", *options).stdout)
        return [f"{entry['method']} {entry['format']} {entry['block']}" for entry in plan["choices"]]

    assert labels() == ["packed nf4 64", "packed int8 64"]
    assert labels("--keep", "f*") == ["keep None None", "packed int8 64"]
    assert labels("--set", "re:^first$=w4a16", "--block-size", "32") == ["packed uint4 32", "packed int8 32"]
    assert labels("-s", "w4a16") == ["packed nf4 64", "packed uint4 64"]


def test_check_compares_two_models() -> None:
    run("quantize", DIGITS, "-s", "w8a16", "-o", "q.onnx", "--no-check")
    found = json.loads(run("check", DIGITS, "q.onnx", "--data", DATA, "--json").stdout)
    assert found["kernels"] == {"MatMulNBits": 1}
    assert found["sqnr"] > 35
    assert " ".join(run("check", DIGITS, DIGITS).stdout.split()).startswith("error identical on ")


def test_notes_are_shown_without_a_check() -> None:
    words = ("quantize", DIGITS, "-w", "int4", "--algorithm", "gptq", "--data", DATA, "-o", "q.onnx", "--no-check")
    assert "note: data chose the codes of" in run(*words).stdout


def test_brackets_are_shown(tmp_path: Path) -> None:
    """They are no markup: `[0]` of a name, `[a]` of a file."""
    text = "g (float[4,64] x) => (float[4,64] y) { y = MatMul(x, w) }"
    proto = tiny.model(text, {"w": normal(64, 64)})
    proto.graph.node[0].name = "layers[last]/up"
    model = tiny.save(proto, tmp_path, "tiny[a].onnx")
    assert "layers[last]/up" in (out := run("plan", model, "--nodes").stdout)
    assert f"{model}: w4a16" in out
    assert run("quantize", model, "-o", "q[b].onnx").stdout.startswith("q[b].onnx: ")


def test_inspect_says_what_is_in_a_model() -> None:
    out = run("inspect", DIGITS).stdout
    for words in ("image: float[batch, 1, 32, 32]", "logits: float[batch, 10]", "5 Conv", "5 of Conv, 1 of Gemm"):
        assert words in out


def test_inspect_does_not_deny_weights_of_quantized_nodes(tmp_path: Path) -> None:
    text = "g (float[4,64] x) => (float[4,64] y) { y = MatMul(x, w) }"
    model = tiny.save(tiny.model(text, {"w": normal(64, 64)}), tmp_path)
    run("quantize", model, "-s", "w4a16", "-o", "q.onnx", "--no-check", "--keep-slow")
    out = run("inspect", "q.onnx").stdout
    assert "none but those of quantized nodes" in out and "1 MatMulNBits" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("quantize", "none.onnx"), "'none.onnx': no such file"),
        (("quantize", DATA), "is an archive of numpy's arrays: give a model"),
        (("quantize", DIGITS, "-s", "w8a8"), "w8a8 needs calibration data: give --data"),
        (("quantize", DIGITS, "-o", "no/q.onnx"), "the folder 'no' does not exist"),
        (("quantize", DIGITS, "--set", "w8a16"), "--set: invalid rule 'w8a16'; example: 'layers.0/*=w8a16'"),
        (("quantize", DIGITS, "--set", "*=int9"), "unknown scheme 'int9'; choose one of auto, w8a8"),
        (("quantize", DIGITS, "--weights", "int9"), "unknown number format 'int9'; choose one of bfloat16"),
        (("quantize", DIGITS, "--weights", "nf4", "-s", "w4a16"), "--scheme and --weights exclude each other"),
        (
            ("quantize", DIGITS, "--weights", "q5_1"),
            "ort-cpu cannot hold q5_1 weights: no operator adds the minimum of a block; give --target onnxq",
        ),
        (("quantize", DIGITS, "--weights", "q8_0", "--block", "64"), "a block of q8_0 has 32 weights, not 64"),
        (("quantize", DIGITS, "--keep", "re:("), "is not a regular expression"),
        (("quantize", DIGITS, "--block-size", "20"), "invalid block size 20; choose one of 16, 32, 64, 128, 256"),
        (("quantize", DIGITS, "--plan", "none.json"), "the plan 'none.json' cannot be read"),
        (("plan", DIGITS, "--recipe", "none.toml"), "the recipe 'none.toml' cannot be read"),
    ],
    ids=lambda x: "-" if isinstance(x, str) else "_".join(Path(word).name for word in map(str, x)),
)
def test_failures_are_one_sentence(tmp_path: Path, words: tuple[object, ...], sentence: str) -> None:
    """On standard error, with exit code 1, and no file is left."""
    result = run(*words, exit_code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("onnxq: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_do_is_no_failure(tmp_path: Path) -> None:
    model = tiny.save(tiny.model("g (float[4] x) => (float[4] y) { y = Relu(x) }"), tmp_path)
    result = run("quantize", model)
    assert "nothing to do" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("words", [("quantize",), ("quantize", DIGITS, "-s", "int3"), ("quantise", DIGITS)])
def test_wrong_usage_has_exit_code_2(words: tuple[object, ...]) -> None:
    assert "Usage: " in run(*words, exit_code=2).stderr


def test_help_and_version() -> None:
    assert run("--version").stdout.startswith(f"onnxq, version {onnxq.__version__}\n")
    text = run("quantize", "-h").stdout
    assert all(word in text for word in SCHEMES)


def test_defaults_are_those_of_the_api() -> None:
    """Every option of `quantize` is one of `onnxq.quantize` or a field of `Recipe`, and means the same unset."""
    given = main.commands["quantize"].make_context("quantize", ["model.onnx"]).params
    renamed = {"plan_file": "plan", "preprocess": "preprocessing"}
    api = {name: parameter.default for name, parameter in inspect.signature(onnxq.quantize).parameters.items()}
    assert (api.pop("learn"), api.pop("held_back")) == (None, HELD_BACK)  # what `onnxq train` gives
    options = {renamed.get(name, name): value for name, value in given.items()}
    effort = {name: options.pop(name) for name in ("max_memory", "jobs", "checkpoint_every", "cluster")}
    assert effort_of(effort) == Effort() == api.pop("effort")
    only_here = {
        "as_json",
        "report",
        "html",
        "save_profile",
        "keep",
        "sets",
        "no_check",
        "weights",
        "percentile",
        "momentum",
        "bins",
    }
    recipe = set(Recipe.__dataclass_fields__) - {"rules"}
    folders = {
        name: parameter.default for name, parameter in inspect.signature(onnxq.quantize_folder).parameters.items()
    }
    assert options.pop("layout") is None  # a model has none; of a folder it is the default of the API
    assert f"[default: {folders['layout']}]" in " ".join(run("quantize", "--help").stdout.split())
    assert options.pop("variants") == folders["variants"]
    assert set(options) - only_here == (set(api) - {"check", "progress", "guard", "one_scheme"}) | recipe
    for name in set(options) & set(api) - {"model", "recipe"}:
        assert options[name] == api[name], name
    assert {name: options[name] for name in recipe} == dict.fromkeys(recipe)  # None: as the Recipe says
    assert not options["no_check"]
    assert api["check"] is True
    assert Recipe(api["recipe"]) == Recipe()
