"""Texts become what language models take: ids, masks, positions, and caches that the model itself has filled."""

from __future__ import annotations

import json
from pathlib import Path

import corpora
import numpy as np
import onnx
import pytest
import tiny

from onnxq.errors import BadData, BadModel, BadRecipe
from onnxq.runtime.session import Feed, Session
from onnxq.samples.reading import How, reading_of
from onnxq.samples.source import Data, inputs_of, open_data
from onnxq.samples.texts.companions import Companions


def opened(made: onnx.ModelProto, data: Path, how: How = None) -> Data:
    """The data for a model that lies in the data's folder."""
    model, path = tiny.read(made), tiny.save(made, data.parent)
    return open_data(data, inputs_of(model), how, model=model, path=path)


def of(folder: Path, lengths: str | None = None) -> How:
    return reading_of(None, folder, lengths)


def test_an_encoder_gets_ids_masks_and_types_of_mixed_lengths(tmp_path: Path) -> None:
    data = opened(
        corpora.encoder(), corpora.text(tmp_path / "t.txt"), of(corpora.tokenizer(tmp_path / "tok", special=True))
    )
    samples = list(data.limited(8))
    assert [sample["input_ids"].shape for sample in samples] == [(1, 3), (1, 8), (1, 32), (1, 128)] * 2
    for sample in samples:
        assert (sample["input_ids"][0, 0], sample["input_ids"][0, -1]) == (2, 3)
        assert sample["input_ids"].dtype == np.int64
        assert sample["attention_mask"].all() and not sample["token_type_ids"].any()
    first = json.loads(json.dumps((tmp_path / "t.txt").read_text().split()[0]))
    assert samples[0]["input_ids"][0, 1] == 4 + corpora.WORDS.index(first)


def test_a_fixed_length_is_filled_up(tmp_path: Path) -> None:
    how = of(corpora.tokenizer(tmp_path / "tok"), "4,100")
    short, long = list(opened(corpora.encoder(length="16"), corpora.text(tmp_path / "t.txt"), how).limited(2))
    assert short["attention_mask"].tolist() == [[1] * 4 + [0] * 12]
    assert short["input_ids"][0, 4:].tolist() == [0] * 12 and long["attention_mask"].all()


def test_caches_come_from_real_decoding(tmp_path: Path) -> None:
    """A step with a past gives what the whole text gives at its last token."""
    made = corpora.decoder()
    data = opened(made, corpora.text(tmp_path / "t.txt"), of(corpora.tokenizer(tmp_path / "tok"), "1,7"))
    session = Session(tmp_path / "model.onnx")
    empty, one, seven, eight = list(data.limited(4))
    assert [s["past_key_values.0.key"].shape[2] for s in (empty, one, seven, eight)] == [0, 1, 0, 7]
    assert [s["input_ids"].shape[1] for s in (empty, one, seven, eight)] == [1, 1, 7, 1]
    assert eight["attention_mask"].shape == (1, 8) and eight["position_ids"].tolist() == [[7]]
    logits, _ = session.run(eight)
    assert np.abs(eight["past_key_values.0.key"]).min(axis=-1).min() > 0
    # The same tokens from the start: those before are found by asking which words have these keys.
    words = _words(tmp_path, 8, skip=_taken(data, 3))
    again, _ = session.run(_whole(words))
    assert words[-1] == eight["input_ids"][0, 0]
    np.testing.assert_allclose(logits[0, -1], again[0, -1], rtol=1e-4, atol=1e-5)


def _taken(data: Data, number: int) -> int:
    """Words of the lines before those that a sample is made of."""
    read = next(r for i, r in enumerate(data.reads()) if i == number)
    line = int(read.args[0].args[0].where.split("line ")[1])
    return (line - 1) * 5


def _words(folder: Path, count: int, skip: int) -> list[int]:
    words = (folder / "t.txt").read_text().split()[skip : skip + count]
    return [4 + corpora.WORDS.index(word) for word in words]


def _whole(ids: list[int]) -> Feed:
    return {
        "input_ids": np.array([ids]),
        "attention_mask": np.ones((1, len(ids)), np.int64),
        "position_ids": np.arange(len(ids))[None],
        "past_key_values.0.key": np.zeros((1, 1, 0, 16), np.float32),
    }


def test_any_sample_can_be_made_alone(tmp_path: Path) -> None:
    data = opened(corpora.decoder(), corpora.text(tmp_path / "t.txt"), of(corpora.tokenizer(tmp_path / "tok")))
    ninth = list(data.limited(10))[9]
    for alone in (next(data.after(9)), list(data.limited(10).shard(2, 2))[4]):
        assert all(np.array_equal(ninth[name], alone[name]) for name in ninth)


def test_a_merged_decoder_gets_its_switch(tmp_path: Path) -> None:
    made = corpora.decoder(extra=", bool[1] use_cache_branch")
    data = opened(made, corpora.text(tmp_path / "t.txt"), of(corpora.tokenizer(tmp_path / "tok")))
    found = [(s["use_cache_branch"].tolist(), s["past_key_values.0.key"].shape[2]) for s in data.limited(4)]
    assert found == [([False], 0), ([True], 1), ([False], 0), ([True], 8)]


RECURRENT = """m (int64[1,t] input, float[1,1,8] h0, float[1,1,8] c0) =>
    (float[t,8] y, float[1,1,8] hn, float[1,1,8] cn) {
    x = Gather(table, input)
    turned = Transpose<perm = [1, 0, 2]>(x)
    all, hn, cn = LSTM<hidden_size = 8>(turned, w, r, , , h0, c0)
    some = Squeeze(all, axes)
    y = MatMul(some, head)
}"""


def recurrent() -> onnx.ModelProto:
    return tiny.model(
        RECURRENT,
        {
            "table": tiny.normal(corpora.ROWS, 4),
            "w": tiny.normal(1, 32, 4) * 4,
            "r": tiny.normal(1, 32, 8),
            "axes": np.array([1, 2], np.int64),
            "head": tiny.normal(8, 8),
        },
    )


def test_states_come_from_real_decoding(tmp_path: Path) -> None:
    data = opened(recurrent(), corpora.text(tmp_path / "t.txt"), of(corpora.tokenizer(tmp_path / "tok"), "6"))
    fresh, used = list(data.limited(2))
    assert not fresh["h0"].any() and fresh["input"].shape == (1, 6)
    assert used["h0"].all() and used["c0"].all() and used["input"].shape == (1, 1)


def test_time_may_come_before_the_batch(tmp_path: Path) -> None:
    made = tiny.model(
        "m (int32[time,batch] ids, float[1,batch,8] h_in) => (float[1,batch,8] y, float[1,batch,8] h_out) {"
        "x = Gather(table, ids) all, h_out = GRU<hidden_size = 8>(x, w, r, , , h_in) y = Relu(h_out)}",
        {"table": tiny.normal(corpora.ROWS, 4), "w": tiny.normal(1, 24, 4) * 4, "r": tiny.normal(1, 24, 8)},
    )
    how = of(corpora.tokenizer(tmp_path / "tok"), "6")
    fresh, used = list(opened(made, corpora.text(tmp_path / "t.txt"), how).limited(2))
    assert fresh["ids"].shape == (6, 1) and fresh["ids"].dtype == np.int32 and not fresh["h_in"].any()
    assert used["ids"].shape == (1, 1) and used["h_in"].shape == (1, 1, 8) and used["h_in"].all()


def test_a_model_that_reads_itself_gets_the_text(tmp_path: Path) -> None:
    made = tiny.model("m (string[b,1] words) => (string[b,1] y) {y = Identity(words)}")
    (tmp_path / "t.jsonl").write_text('{"text": "lazy dog"}\n{"text": "fox"}')
    found = [sample["words"].tolist() for sample in opened(made, tmp_path / "t.jsonl")]
    assert found == [[["lazy dog"]], [["fox"]]]


def test_text_is_nothing_for_a_model_of_images(tmp_path: Path) -> None:
    """Its input is not taken for a state, although its output has the same shape."""
    made = tiny.model("m (float[b,3,h,w] input) => (float[b,3,h,w] output) {output = Relu(input)}")
    with pytest.raises(BadData, match="texts cannot make 'input'"):
        opened(made, corpora.text(tmp_path / "t.txt"), of(corpora.tokenizer(tmp_path / "tok")))


def test_an_encoder_decoder_in_one_file(tmp_path: Path) -> None:
    made = tiny.model(
        """m (int64[b,s] input_ids, int64[b,s] attention_mask, int64[b,d] decoder_input_ids) => (float[b,d,8] y) {
            x = Gather(table, input_ids)
            mean = ReduceMean<axes = [1]>(x)
            z = Gather(table, decoder_input_ids)
            both = Add(z, mean)
            y = MatMul(both, w)
        }""",
        {"table": tiny.normal(corpora.ROWS, 8), "w": tiny.normal(8, 8)},
    )
    (tmp_path / "config.json").write_text('{"decoder_start_token_id": 3}')
    (sample,) = opened(made, corpora.text(tmp_path / "t.txt"), of(corpora.tokenizer(tmp_path / "tok"), "9")).limited(1)
    assert sample["decoder_input_ids"][0, 0] == 3
    assert sample["decoder_input_ids"][0, 1:].tolist() == sample["input_ids"][0, :8].tolist()


DECODER_PART = """m (int64[b,e] encoder_attention_mask, int64[b,d] input_ids, float[b,e,8] encoder_hidden_states,
    float[b,1,past,8] past_key_values__0__decoder__key, bool[1] use_cache_branch)
    => (float[b,d,8] logits, float[b,1,t,8] present__0__decoder__key) {
    x = Gather(table, input_ids)
    heads = Unsqueeze(x, one)
    present__0__decoder__key = Concat<axis = 2>(past_key_values__0__decoder__key, heads)
    mean = ReduceMean<axes = [1]>(encoder_hidden_states)
    both = Add(x, mean)
    logits = MatMul(both, w)
}"""


def test_a_decoder_gets_what_the_encoder_beside_it_makes(tmp_path: Path) -> None:
    tables = {"table": tiny.normal(corpora.ROWS, 8), "w": tiny.normal(8, 8), "one": np.array([1], np.int64)}
    part = corpora.dotted(tiny.model(DECODER_PART, tables))
    how = of(corpora.tokenizer(tmp_path / "tok"), "5")
    with pytest.raises(
        BadData, match=r"cannot make 'encoder_hidden_states': the model's encoder \(encoder_model.onnx\)"
    ):
        opened(part, corpora.text(tmp_path / "t.txt"), how)
    encoder = tiny.model(
        "m (int64[b,e] input_ids, int64[b,e] attention_mask) => (float[b,e,8] h) "
        "{x = Gather(table, input_ids) h = Relu(x)}",
        {"table": tables["table"]},
    )
    tiny.save(encoder, tmp_path, "encoder_model.onnx")
    prompt, step = list(opened(part, tmp_path / "t.txt", how).limited(2))
    assert prompt["encoder_hidden_states"].shape == (1, 5, 8) and prompt["encoder_hidden_states"].any()
    assert prompt["past_key_values.0.decoder.key"].shape[2] == 0 and not prompt["use_cache_branch"].any()
    assert step["past_key_values.0.decoder.key"].shape[2] > 0 and step["use_cache_branch"].all()
    assert step["input_ids"].shape == (1, 1) and step["encoder_attention_mask"].shape[1] == 5
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 5}')
    prompt, step = list(opened(part, tmp_path / "t.txt", how).limited(2))
    assert prompt["input_ids"].shape[1] == 5, "the start is among the tokens that there are places for"
    assert step["past_key_values.0.decoder.key"].shape[2] == 4


def test_lines_of_json(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"fox dog {'fox ' * i}", "id": i}) for i in range(3)]
    (tmp_path / "t.jsonl").write_text("\n".join([*lines, ""]))
    found = list(opened(corpora.encoder(), tmp_path / "t.jsonl", of(corpora.tokenizer(tmp_path / "tok"), "16")))
    assert [sample["input_ids"].shape[1] for sample in found] == [2, 3, 4]


def test_lines_of_messages_are_no_texts(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"messages": [{"role": "user", "content": "fox"}], "id": 3}')
    with pytest.raises(BadData, match=r"line 1 has no \"text\" that is a string, and none of .* but 'messages', 'id'"):
        opened(corpora.encoder(), tmp_path / "t.jsonl", of(corpora.tokenizer(tmp_path / "tok")))


def test_the_tokenizer_beside_the_model_is_used_and_named(tmp_path: Path) -> None:
    corpora.tokenizer(tmp_path)
    with pytest.warns(RuntimeWarning, match=r"text is read as .*tokenizer\.json says, which lies beside the model"):
        data = opened(corpora.encoder(), corpora.text(tmp_path / "t.txt"))
    before = data.hash()
    assert data.limited(1).count == 1
    with pytest.warns(RuntimeWarning):
        assert opened(corpora.encoder(), tmp_path / "t.txt", reading_of(None, None, 8)).hash() != before
    corpora.tokenizer(tmp_path, special=True)
    with pytest.warns(RuntimeWarning):
        assert opened(corpora.encoder(), tmp_path / "t.txt").hash() != before


def test_the_hash_knows_tokenizer_and_lengths(tmp_path: Path) -> None:
    """A file of ranges is refused for data that are read in another way."""
    one, other = corpora.tokenizer(tmp_path / "one"), corpora.tokenizer(tmp_path / "other", special=True)
    file = corpora.text(tmp_path / "t.txt")
    readings = [of(one), of(one, "8"), of(one, "8,16"), of(other), of(one / "tokenizer.json")]
    hashes = [opened(corpora.encoder(), file, reading).hash() for reading in readings]
    assert len(set(hashes)) == 4 and hashes[0] == hashes[4]


def test_the_tokenizer_of_another_model(tmp_path: Path) -> None:
    how = of(corpora.tokenizer(tmp_path / "tok"), "8")
    data = opened(corpora.encoder(rows=10), corpora.text(tmp_path / "t.txt"), how)
    with pytest.raises(
        BadData, match=r"gives the id \d+, but 'input_ids' looks up a table of 10 rows: it belongs to ano"
    ):
        list(data.limited(8))


def test_tokens_stay_within_what_the_tokenizer_was_made_for(tmp_path: Path) -> None:
    how = of(corpora.tokenizer(tmp_path / "tok", model_max_length=12), "64")
    (sample,) = opened(corpora.encoder(), corpora.text(tmp_path / "t.txt"), how).limited(1)
    assert sample["input_ids"].shape == (1, 12)


def test_tokens_stay_within_the_places_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 20, "model_type": "xlm-roberta"}')
    how = of(corpora.tokenizer(tmp_path / "tok"), "64")
    (sample,) = opened(corpora.encoder(), corpora.text(tmp_path / "t.txt"), how).limited(1)
    assert sample["input_ids"].shape == (1, 18)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("fox \xe9".encode("latin-1"), r"t\.txt' is not UTF-8 text: .* near line 1"),
        ("fox".encode("utf-16"), r"t\.txt' is not UTF-8 text"),
        (b"", r"t\.txt' holds no samples"),
        (b" \n\n  \n", r"t\.txt' holds no samples"),
    ],
    ids=["latin-1", "utf-16", "empty", "blank"],
)
def test_texts_that_are_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    data = opened(corpora.encoder(), tmp_path / "t.txt", of(corpora.tokenizer(tmp_path / "tok")))
    with pytest.raises(BadData, match=message):
        list(data)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[" * 100_000, "line 1 is not JSON"),
        ('"fox"', "line 1 is a string, not an object"),
        ('{"words": 3}', "line 1 has no .text. that is a string, and none of the inputs 'input_ids', .*, but 'words'"),
    ],
    ids=["cut short", "deep", "string", "no text"],
)
def test_lines_that_are_no_json(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(line)
    with pytest.raises(BadData, match=message):
        list(opened(corpora.encoder(), tmp_path / "t.jsonl", of(corpora.tokenizer(tmp_path / "tok"))))


def test_a_line_without_end_is_read_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("fox " * 100_000)
    data = opened(corpora.encoder(), tmp_path / "t.txt", of(corpora.tokenizer(tmp_path / "tok")))
    assert data.limited(50).count == 50


def test_what_text_cannot_make_is_named(tmp_path: Path) -> None:
    made = tiny.model(
        "m (int64[b,s] input_ids, float[b,s] gates, float[b,3] boxes) => (float[b,s] y) "
        "{x = Cast<to = 1>(input_ids) y = Mul(x, gates)}"
    )
    with pytest.raises(BadData, match=r"texts make 'input_ids', but cannot make 'gates', 'boxes': use \.npz files"):
        opened(made, corpora.text(tmp_path / "t.txt"), of(corpora.tokenizer(tmp_path / "tok")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "is not a tokenizer.json"),
        ("", "is not a tokenizer.json"),
        (None, "holds no tokenizer.json: AutoTokenizer"),
    ],
)
def test_tokenizers_that_are_none(tmp_path: Path, content: str | None, message: str) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tok").mkdir()
    if content is not None:
        (tmp_path / "tok" / "tokenizer.json").write_text(content)
    with pytest.raises(BadData, match=message):
        opened(corpora.encoder(), corpora.text(tmp_path / "t.txt"), of(tmp_path / "tok"))


def test_text_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"is text: give the model's tokenizer, --tokenizer tokenizer.json"):
        list(opened(corpora.encoder(), corpora.text(tmp_path / "t.txt")))


@pytest.mark.parametrize("words", ["", "x", "0", "8,", "8,-1"])
def test_lengths_that_are_not_understood(words: str) -> None:
    with pytest.raises(BadRecipe, match=f"--length: invalid lengths '{words}'"):
        reading_of(None, None, words)


def test_an_encoder_beside_the_model_reads_no_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    (tmp_path / "model").mkdir()
    encoder = tiny.model("encoder (float[1, 4] x) => (float[1, 4] y) <float[1, 4] w = {1, 2, 3, 4}> { y = Add(x, w) }")
    del encoder.graph.initializer[:]
    encoder.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[1, 4], data_location=1)
    encoder.graph.initializer[0].external_data.add(key="location", value="../secret")
    onnx.save(encoder, tmp_path / "model" / "encoder_model.onnx")
    with pytest.raises(BadModel, match="outside the model's folder"):
        _ = Companions(path=tmp_path / "model" / "decoder_model.onnx").encoder
