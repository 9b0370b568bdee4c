"""Every command of docs/data.md, on tiny models and data that are made here; each sample runs in onnxruntime."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import corpora
import numpy as np
import onnx
import pytest
import tiny
from click.testing import CliRunner

import onnxq
from onnxq.cli import main
from onnxq.runtime.session import Session
from onnxq.samples import sampling
from onnxq.samples.source import Data
from onnxq.tuning import plan_bench

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\| .* \| `onnxq (quantize .*)` \|$", PAGE, re.MULTILINE)
for extra in ("PIL", "tokenizers", "soundfile", "soxr", "pyarrow"):
    pytest.importorskip(extra)


def convolutions(shape: str, *, last: bool = False) -> onnx.ModelProto:
    """Of an image, channels first or last."""
    turn = "x = Transpose<perm = [0, 3, 1, 2]>(pixels)" if last else "x = Identity(pixels)"
    return tiny.model(
        f"m (float[{shape}] pixels) => (float[b,c,h,w] y) {{ {turn} y1 = Conv<pads = [1, 1, 1, 1]>(x, k1)"
        " r = Relu(y1) y = Conv(r, k2) }",
        {"k1": tiny.normal(16, 3, 3, 3), "k2": tiny.normal(4, 16, 1, 1)},
    )


def dense(text: str, *shapes: tuple[int, int]) -> onnx.ModelProto:
    return tiny.model(text, {f"w{i}": tiny.normal(*shape, seed=i) for i, shape in enumerate(shapes)})


def lookup(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    """A model of tokens with a table and a head."""
    made = {"table": tiny.normal(corpora.ROWS, 16) * 4, "w": tiny.normal(16, 16), "one": np.array([1], np.int64)}
    return corpora.dotted(tiny.model(text, made | constants))


PART = """m ({ids} float[b,e,16] encoder_hidden_states, float[b,1,past,16] past_key_values__0__key,
    bool[1] use_cache_branch) => (float[b,d,32] logits, float[b,1,t,16] present__0__key) {{
    x = Gather(table, input_ids)
    heads = Unsqueeze(x, one)
    present__0__key = Concat<axis = 2>(past_key_values__0__key, heads)
    mean = ReduceMean<axes = [1]>(encoder_hidden_states)
    both = Add(x, mean)
    h = MatMul(both, w)
    logits = MatMul(h, head)
}}"""


def parts(folder: Path) -> None:
    """Encoder and decoder in two files, of text and of speech."""
    (folder / "parts").mkdir()
    (folder / "speech").mkdir()
    head = tiny.normal(16, 32)
    ids = "int64[b,e] encoder_attention_mask, int64[b,d] input_ids,"
    tiny.save(lookup(PART.format(ids=ids), head=head), folder / "parts", "decoder_model_merged.onnx")
    text = """m (int64[b,e] input_ids, int64[b,e] attention_mask) => (float[b,e,16] h) {
        x = Gather(table, input_ids)
        h = MatMul(x, w)
    }"""
    tiny.save(lookup(text), folder / "parts", "encoder_model.onnx")
    tiny.save(
        lookup(PART.format(ids="int64[b,d] input_ids,"), head=head), folder / "speech", "decoder_model_merged.onnx"
    )
    text = """m (float[b,20,100] input_features) => (float[b,100,16] h) {
        x = Transpose<perm = [0, 2, 1]>(input_features)
        h = MatMul(x, w0)
    }"""
    tiny.save(dense(text, (20, 16)), folder / "speech", "encoder_model.onnx")
    whisper = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "sampling_rate": 16000,
        "feature_size": 20,
        "chunk_length": 1,
    }
    (folder / "speech" / "preprocessor_config.json").write_text(json.dumps(whisper))


def models(folder: Path) -> None:
    mean = "c = ReduceMean<axes = [1], keepdims = 0>"
    found = {
        "classifier": convolutions("b,3,32,32"),
        "channels_last": convolutions("b,32,32,3", last=True),
        "detector": convolutions("1,3,h,w"),
        "segmentation": convolutions("b,3,h,w"),
        "encoder": corpora.encoder(),
        "decoder": lookup(
            "m (int64[b,s] input_ids) => (float[b,s,16] y) {x = Gather(table, input_ids) y = MatMul(x, w)}"
        ),
        "decoder_with_past": corpora.decoder(),
        "decoder_merged": corpora.decoder(extra=", bool[1] use_cache_branch"),
        "translator": lookup(
            "m (int64[b,s] input_ids, int64[b,s] attention_mask, int64[b,d] decoder_input_ids) => (float[b,d,16] y) {"
            f"x = Gather(table, input_ids) {mean}(x) z = Gather(table, decoder_input_ids) both = Add(z, c)"
            " y = MatMul(both, w)}"
        ),
        "waves": tiny.model(
            "m (float[b,t] input_values) => (float[b,16,u] y) {x = Unsqueeze(input_values, one)"
            " y = Conv<strides = [20]>(x, k)}",
            {"one": np.array([1], np.int64), "k": tiny.normal(16, 1, 40)},
        ),
        "audio": dense("m (float[b,f,40] input_values) => (float[b,f,8] y) {y = MatMul(input_values, w0)}", (40, 8)),
        "streaming": dense(
            "m (float[1,n] input, float[1,16] state, int64 sr) => (float[1,8] y, float[1,16] stateN) {"
            "h = MatMul(input, w0) both = Add(h, state) stateN = Tanh(both) y = MatMul(stateN, w1)}",
            (512, 16),
            (16, 8),
        ),
        "lstm": lookup(
            "m (int64[1,t] ids, float[1,1,8] h0, float[1,1,8] c0) => (float[t,1,1,8] y, float[1,1,8] hn,"
            " float[1,1,8] cn) {"
            "x = Gather(table, ids) turned = Transpose<perm = [1, 0, 2]>(x)"
            " y, hn, cn = LSTM<hidden_size = 8>(turned, a, r, , , h0, c0)}",
            a=tiny.normal(1, 32, 16) * 4,
            r=tiny.normal(1, 32, 8),
        ),
        "tabular": dense("m (float[b,3] x) => (float[b,128] y) {y = MatMul(x, w0)}", (3, 128)),
        "columns": dense(
            "m (float[b,1] age, float[b,4] bands) => (float[b,64] y) {"
            "both = Concat<axis = 1>(age, bands) y = MatMul(both, w0)}",
            (5, 64),
        ),
        "several": dense(
            "m (float[b,3] one, float[b,5] two) => (float[b,64] y) {"
            "both = Concat<axis = 1>(one, two) y = MatMul(both, w0)}",
            (8, 64),
        ),
        "pairs": lookup(
            "m (float[b,3,32,32] pixel_values, int64[b,s] input_ids, int64[b,s] attention_mask) => (float[b,16] y) {"
            f"x = Gather(table, input_ids) {mean}(x) p = Conv<strides = [8, 8]>(pixel_values, k)"
            " q = GlobalAveragePool(p) flat = Flatten(q) both = Add(flat, c) y = MatMul(both, w)}",
            k=tiny.normal(16, 3, 8, 8),
        ),
    }
    for name, made in found.items():
        tiny.save(made, folder, f"{name}.onnx")
    parts(folder)


def data(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    corpora.text(folder / "text.txt")
    corpora.tokenizer(folder / "tokenizer")
    corpora.tokenizer(folder)
    lines = [json.dumps({"text": line}) for line in (folder / "text.txt").read_text().splitlines()[:12]]
    (folder / "chats.jsonl").write_text("\n".join(lines))
    for name in ("cat", "dog"):
        corpora.images(folder / "photos" / name, count=4, size=(40, 50))
    clip = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 36}, "crop_size": 32}
    (folder / "preprocessor_config.json").write_text(json.dumps(clip))
    (folder / "sounds").mkdir()
    for i in range(4):
        corpora.sound(folder / "sounds" / f"{i}.wav", seconds=1 + 0.2 * i, rate=(8000, 16000)[i % 2])
    rows = np.random.default_rng(0).standard_normal((12, 4)).tolist()
    (folder / "table.csv").write_text("\n".join(["a,b,c,label", *(",".join(map(str, row)) for row in rows)]))
    pa.parquet.write_table(pa.table({"age": list(range(12)), "bands": rows}), folder / "table.parquet")
    images = [file.read_bytes() for file in sorted((folder / "photos").rglob("*.png"))]
    table = pa.table({"image": images, "text": [json.loads(line)["text"] for line in lines[: len(images)]]})
    pa.parquet.write_table(table, folder / "pairs.parquet")
    rng = np.random.default_rng(0)
    arrays = {"one": rng.standard_normal((12, 3)), "two": rng.standard_normal((12, 5))}
    np.savez(folder / "arrays.npz", **arrays)
    (folder / "my_data.py").write_text(
        "import numpy as np\ndef samples():\n    held = np.load('arrays.npz')\n"
        "    for i in range(12):\n        yield {name: held[name][i : i + 1] for name in held}\n"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("page")
    models(found)
    data(found)
    return found


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[list[Data]]:
    """The data that a command opened."""
    found: list[Data] = []
    real = sampling.open_data
    monkeypatch.setattr(sampling, "open_data", lambda *args, **kwargs: found.append(real(*args, **kwargs)) or found[-1])
    monkeypatch.chdir(folder)
    return found


@pytest.mark.sweep
@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore:.*which lies beside the model")
@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(re.findall(r"(\w+)\.onnx|'(\w+)", c)[0]) for c in COMMANDS])
def test_commands(command: str, folder: Path, tmp_path: Path, seen: list[Data]) -> None:
    words = [*shlex.split(command), "--limit", "16", "-o", str(tmp_path / "small.onnx")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    (opened,) = seen
    samples = list(opened.limited(16))
    assert len(samples) >= 4
    session = Session(folder / words[1])
    outputs = [session.run(sample)[0] for sample in samples]
    assert all(np.isfinite(output).all() for output in outputs)
    assert len({output.tobytes() for output in outputs}) > 1
    caches = [name for name in samples[0] if re.match("past|state|h0|c0", name)]
    assert all({bool(sample[name].any()) for sample in samples} == {False, True} for name in caches)


def test_the_page_has_all_kinds() -> None:
    assert len(COMMANDS) == PAGE.count("`onnxq quantize")
    kinds = (
        "image classifier",
        "detector",
        "segmentation",
        "BERT",
        "decoder with a cache",
        "merged",
        "encoder-decoder",
    )
    for kind in (
        *kinds,
        "speech recognition",
        "classifier of sounds",
        "tabular",
        "LSTM with a state",
        "several inputs",
    ):
        assert kind in PAGE


@pytest.mark.usefixtures("quick")
def test_python(tmp_path: Path, seen: list[Data]) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    exec(code.replace('.onnx",', f'.onnx", "{tmp_path}/small.onnx",'), {"onnxq": onnxq})
    assert {sample["input_ids"].shape[1] for sample in seen[0].limited(4)} == {16, 128}


@pytest.mark.sweep
@pytest.mark.usefixtures("quick")
def test_other_commands_take_the_same(tmp_path: Path, seen: list[Data]) -> None:
    """And several processes; ranges are refused for data that are read in another way."""
    options = ["--data", "text.txt", "--tokenizer", "tokenizer/"]
    for words in (
        [
            "calibrate",
            "decoder_with_past.onnx",
            "--jobs",
            "2",
            "--limit",
            "8",
            "-s",
            "w8a8",
            "-o",
            str(tmp_path / "r.ranges"),
        ],
        ["check", "decoder_with_past.onnx", "decoder_with_past.onnx"],
        ["analyze", "decoder_with_past.onnx", "-w", "int8", "--limit", "8"],
        ["benchmark", "decoder_with_past.onnx", "-w", "int8", "-g", "channel", "--limit", "8"],
        ["plan", "decoder_with_past.onnx", "-s", "w8a8"],
    ):
        result = CliRunner().invoke(main, [*words, *options])
        assert result.exit_code == 0, f"{words[0]}: {result.output}"
    again = ["quantize", "decoder_with_past.onnx", "-s", "w8a8", "--limit", "8", "--ranges", str(tmp_path / "r.ranges")]
    result = CliRunner().invoke(main, [*again, *options, "--length", "9", "-o", str(tmp_path / "o.onnx")])
    assert result.exit_code == 1 and "r.ranges" in result.output and "data" in result.output
    result = CliRunner().invoke(main, [*again, *options, "-o", str(tmp_path / "o.onnx")])
    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("quick")
def test_of_a_table_with_more_rows_it_is_said_how_many_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.save(dense("m (float[b,64] x) => (float[b,512] y) {y = MatMul(x, w0)}", (64, 512)), tmp_path, "m.onnx")
    rows = np.random.default_rng(0).standard_normal((20, 64)).tolist()
    lines = [",".join(f"c{i}" for i in range(64)), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"x": [row]}) + "\n" for row in rows))
    for file in ("t.csv", "t.jsonl"):
        note = f"note: 8 of the 20 samples of '{file}' are used, evenly spread over them: --limit takes more"
        for words in (
            "quantize m.onnx -s w8a8 -o o.onnx",
            "calibrate m.onnx -s w8a8 -o o.ranges",
            "calibrate m.onnx --evidence o.npz",
            "analyze m.onnx -w int8",
            "benchmark m.onnx -w int8",
            "check m.onnx o.onnx",
            "check m.onnx o.onnx --by-layer",
        ):
            force = [] if words.startswith(("check", "analyze")) else ["--force"]
            result = CliRunner().invoke(main, [*words.split(), *force, "--data", file, "--limit", "8"])
            assert " ".join(result.output.split()).count(note) == 1, (words, result.output)
            assert "by-layer" in words or "check" not in words or "on 8 samples (--limit)" in result.output


@pytest.mark.usefixtures("quick")
def test_a_page_says_once_which_samples_of_a_table_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.save(dense("m (float[b,64] x) => (float[b,512] y) {y = MatMul(x, w0)}", (64, 512)), tmp_path, "m.onnx")
    rows = np.random.default_rng(0).standard_normal((20, 64)).tolist()
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"x": [row]}) + "\n" for row in rows))
    note = "8 of the 20 samples of 't.jsonl' are used, evenly spread over them: --limit takes more"
    for words in (
        "quantize m.onnx -s w8a8 -o o.onnx --html r.json",
        "check m.onnx o.onnx --html r.json",
        "report o.onnx --against m.onnx --json r.json",
        "analyze m.onnx -w int8 --html r.json",
    ):
        (tmp_path / "r.json").unlink(missing_ok=True)
        result = CliRunner().invoke(main, [*words.split(), "--data", "t.jsonl", "--limit", "8"])
        assert result.exit_code == 0, result.output
        assert json.loads((tmp_path / "r.json").read_text())["notes"].count(note) == 1, words


def test_where_time_is_short_the_few_samples_are_of_all_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_bench, "QUALITY_SECONDS", 0.0)
    tiny.save(dense("m (float[b,64] x) => (float[b,512] y) {y = MatMul(x, w0)}", (64, 512)), tmp_path, "m.onnx")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"x": [[i] * 64]}) + "\n" for i in range(20)))
    for command in ("analyze", "benchmark"):
        result = CliRunner().invoke(main, [command, "m.onnx", "-w", "int8", "--data", "t.jsonl", "--limit", "8"])
        assert "2 of the 20 samples of 't.jsonl' are used, evenly spread over them: more would take" in result.output
