"""Data as people have them, made small: tokenizers, texts, sounds and images; and tiny models to go with them."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny

_SENTENCE = "the quick brown fox jumps over a lazy dog while seven wizards box with quiet jaguars and vex my job"
WORDS = _SENTENCE.split(" ")
ROWS = 32


def tokenizer(folder: Path, *, special: bool = False, rows: int = ROWS, **config: object) -> Path:
    """A folder with tokenizer.json of whole words, [CLS] and [SEP] around them if asked for; ids stay below `rows`."""
    tokenizers = pytest.importorskip("tokenizers")
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    names += [f"word{i}" for i in range(rows - len(names))]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if special:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]", **config}))
    return folder


def text(file: Path, words: int = 4000, seed: int = 0) -> Path:
    """Lines of five words."""
    drawn = np.random.default_rng(seed).choice(WORDS, words)
    file.write_text("\n".join(" ".join(drawn[i : i + 5]) for i in range(0, words, 5)), encoding="utf-8")
    return file


def encoder(rows: int = ROWS, length: str = "s") -> onnx.ModelProto:
    """BERT-like: ids, masks and types go in, a matrix of weights makes a class of them."""
    return tiny.model(
        f"""m (int64[b,{length}] input_ids, int64[b,{length}] attention_mask, int64[b,{length}] token_type_ids)
            => (float[b,4] logits) {{
            words = Gather(table, input_ids)
            kinds = Gather(types, token_type_ids)
            both = Add(words, kinds)
            last = Constant<value_int = -1>()
            axis = Unsqueeze(last, zero)
            some = Cast<to = 1>(attention_mask)
            mask = Unsqueeze(some, axis)
            masked = Mul(both, mask)
            h = MatMul(masked, w1)
            r = Relu(h)
            mean = ReduceMean<axes = [1], keepdims = 0>(r)
            logits = MatMul(mean, w2)
        }}""",
        {
            "table": tiny.normal(rows, 16) * 4,
            "types": tiny.normal(2, 16, seed=1),
            "zero": np.array([0], np.int64),
            "w1": tiny.normal(16, 32, seed=2),
            "w2": tiny.normal(32, 4, seed=3),
        },
    )


def dotted(made: onnx.ModelProto) -> onnx.ModelProto:
    """With dots in its names, as exporters write them: in ONNX text they are two underscores."""
    graph = made.graph
    for value in (*graph.input, *graph.output):
        value.name = value.name.replace("__", ".")
    for node in graph.node:
        node.input[:] = [name.replace("__", ".") for name in node.input]
        node.output[:] = [name.replace("__", ".") for name in node.output]
    return made


def decoder(rows: int = ROWS, extra: str = "") -> onnx.ModelProto:
    """GPT-like with a cache: what comes out depends on every token before, and on its position."""
    made = tiny.model(
        f"""m (int64[batch_size,sequence_length] input_ids, int64[batch_size,total_sequence_length] attention_mask,
            int64[batch_size,sequence_length] position_ids{extra},
            float[batch_size,1,past_sequence_length,16] past_key_values__0__key)
            => (float[batch_size,sequence_length,{rows}] logits, float[batch_size,1,t,16] present__0__key) {{
            words = Gather(table, input_ids)
            where = Gather(places, position_ids)
            x = Add(words, where)
            k = MatMul(x, w1)
            heads = Unsqueeze(k, one)
            present__0__key = Concat<axis = 2>(past_key_values__0__key, heads)
            some = Cast<to = 1>(attention_mask)
            wide = Unsqueeze(some, ends)
            seen = Mul(present__0__key, wide)
            sum = ReduceMean<axes = [2], keepdims = 0>(seen)
            y = Add(x, sum)
            logits = MatMul(y, w2)
        }}""",
        {
            "table": tiny.normal(rows, 16) * 4,
            "places": tiny.normal(160, 16, seed=1),
            "one": np.array([1], np.int64),
            "ends": np.array([1, 3], np.int64),
            "w1": tiny.normal(16, 16, seed=2),
            "w2": tiny.normal(16, rows, seed=3),
        },
    )
    return dotted(made)


def sound(file: Path, seconds: float = 1.0, rate: int = 16000, width: int = 2, channels: int = 1) -> Path:
    """A tone that rises, as PCM of `width` bytes."""
    t = np.arange(round(seconds * rate)) / rate
    x = 0.5 * np.sin(2 * np.pi * (200 + 300 * t) * t)
    with wave.open(str(file), "wb") as opened:
        opened.setnchannels(channels)
        opened.setsampwidth(width)
        opened.setframerate(rate)
        numbers = np.repeat(x[:, None] * (2 ** (8 * width - 1) - 1), channels, axis=1).astype("<i8")
        opened.writeframes(numbers.view(np.uint8).reshape(-1, 8)[:, :width].tobytes())
    return file


def images(folder: Path, count: int = 4, size: tuple[int, int] = (20, 30), kind: str = "png") -> Path:
    """A folder of noise with gradients."""
    image = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        slope = np.linspace(0, 155, size[1], dtype=np.uint8)[None, :, None]
        pixels = np.random.default_rng(i).integers(0, 100, (*size, 3), np.uint8) + slope
        image.fromarray(pixels).save(folder / f"{i}.{kind}")
    return folder
