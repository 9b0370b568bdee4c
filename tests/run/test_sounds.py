"""Sounds become wave forms and spectrograms, as the feature extractors of transformers make them, or one sentence."""

from __future__ import annotations

import itertools
import json
import struct
import warnings
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import onnx
import pytest
import tiny
from numpy.typing import NDArray

from onnxq.errors import BadData, BadRecipe
from onnxq.runtime.session import Feed, Input
from onnxq.samples.pictures.processor import load_processor
from onnxq.samples.reading import parse, reading_of
from onnxq.samples.sounds import spectrum
from onnxq.samples.sounds.sound import Sound, features
from onnxq.samples.source import inputs_of, open_data

soundfile = pytest.importorskip("soundfile")
F32 = np.dtype(np.float32)
WAVE = (Input("input_values", F32, ("b", "t")),)
RAW = Sound(rate=16000)


def library() -> Any:
    """transformers, whose warnings are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pytest.importorskip("transformers")
        found.WhisperFeatureExtractor, found.ASTFeatureExtractor, found.Wav2Vec2FeatureExtractor  # noqa: B018
        return found


def noise(seconds: float = 1.3) -> NDArray[np.float32]:
    return (np.random.default_rng(0).standard_normal(round(16000 * seconds)) * 0.1).astype(np.float32)


@pytest.mark.parametrize("scale", ["slaney", "kaldi"])
@pytest.mark.parametrize(
    ("count", "fft", "rate", "low", "high"), [(80, 400, 16000, 0, 8000), (40, 512, 22050, 50, 9000)]
)
def test_mel_filters(scale: spectrum.Scale, count: int, fft: int, rate: int, low: float, high: float) -> None:
    library()
    from transformers.audio_utils import mel_filter_bank

    norm = "slaney" if scale == "slaney" else None
    wanted = mel_filter_bank(fft // 2 + 1, count, low, high, rate, norm, scale, scale == "kaldi")
    got = spectrum.mel_filters(count, fft, rate, low, high, scale)
    assert np.abs(got - wanted).max() < 1e-4 * wanted.max()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("WhisperFeatureExtractor", {"chunk_length": 1}),
        ("WhisperFeatureExtractor", {"feature_size": 128, "chunk_length": 2, "hop_length": 200}),
        ("ASTFeatureExtractor", {}),
        ("ASTFeatureExtractor", {"num_mel_bins": 64, "max_length": 90, "mean": -3.0, "std": 2.0}),
        ("ASTFeatureExtractor", {"do_normalize": False, "max_length": 200}),
        ("Wav2Vec2FeatureExtractor", {"do_normalize": True}),
        ("Wav2Vec2FeatureExtractor", {"do_normalize": False}),
    ],
)
def test_feature_extractors_agree_with_transformers(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of filters without a bin
        extractor = getattr(library(), kind)(**settings)
        extractor.save_pretrained(tmp_path)
        soundfile.write(tmp_path / "s.wav", noise(), 16000, subtype="FLOAT")
        (wanted,) = (
            x for key, x in extractor(noise(), sampling_rate=16000, return_tensors="np").items() if "input" in key
        )
    how = reading_of(str(tmp_path / "preprocessor_config.json"))
    i = Input("input_features" if wanted.ndim == 3 else "input_values", F32, (None,) * wanted.ndim)
    first = next(iter(open_data(tmp_path / "s.wav", (i,), how)))[i.name]
    assert first.shape == wanted.shape
    assert np.abs(first - wanted).max() < 1e-4


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_every_kind_of_wav(tmp_path: Path, subtype: str) -> None:
    soundfile.write(tmp_path / "s.wav", np.stack([noise(), noise()], 1), 16000, subtype=subtype)
    (sample,) = open_data(tmp_path, WAVE, RAW)
    np.testing.assert_allclose(sample["input_values"][0], noise(), atol=2**-7 if subtype == "PCM_U8" else 2**-15)


def test_another_rate_is_resampled(tmp_path: Path) -> None:
    """A tone of 440 Hz stays one."""
    pytest.importorskip("soxr")
    t = np.arange(44100) / 44100
    soundfile.write(tmp_path / "s.wav", 0.5 * np.sin(2 * np.pi * 440 * t), 44100)
    (sample,) = open_data(tmp_path, WAVE, RAW)
    wave = sample["input_values"][0]
    assert wave.shape == (16000,) and np.argmax(np.abs(np.fft.rfft(wave))) == 440
    wanted = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    assert np.abs(wave - wanted)[500:-500].max() < 1e-3


@pytest.mark.parametrize(
    ("shape", "words", "wanted"),
    [
        ((1, 80, 100), "mel=80", (1, 80, 100)),
        ((1, 100, 80), "mel=80", (1, 100, 80)),
        ((None, 80, None), "mel=80 seconds=2", (1, 80, 200)),
        ((None, None, None), "mel=80 style=kaldi", (1, 98, 80)),
        ((1, 1, 96, 64), "mel=64 style=plain", (1, 1, 96, 64)),
        ((1, 96, 64, 1), "mel=64 style=plain", (1, 96, 64, 1)),
        ((1, 64, 1), "mel=64 style=plain", (1, 64, 1)),
        ((None, 4000, 1), "rate=16000", (1, 4000, 1)),
        ((None, 1, None), "rate=8000", (1, 1, 8000)),
        ((None,), "rate=16000", (16000,)),
        ((1, 4000), "rate=16000", (1, 4000)),
        ((2, 4000), "rate=16000", (2, 4000)),
    ],
)
def test_axes_are_those_of_the_model(
    tmp_path: Path, shape: tuple[int | None, ...], words: str, wanted: tuple[int, ...]
) -> None:
    pytest.importorskip("soxr")
    corpora.sound(tmp_path / "s.wav")
    first = next(iter(open_data(tmp_path, (Input("input", F32, shape),), reading_of(words))))
    assert first["input"].shape == wanted and np.abs(first["input"]).max() > 0.1


def test_a_long_sound_is_several_samples(tmp_path: Path) -> None:
    corpora.sound(tmp_path / "s.wav", seconds=1.1)
    data = open_data(tmp_path, (Input("x", F32, (1, 4000)),), RAW)
    whole = next(iter(open_data(tmp_path, WAVE, RAW)))["input_values"][0]
    assert data.count == 4
    np.testing.assert_array_equal(np.concatenate([s["x"][0] for s in data]), whole[:16000])


STREAMING = """m (float[1,256] input, float[1,4] state, int64 sr) => (float[1,4] y, float[1,4] stateN) {
    h = MatMul(input, w)
    both = Add(h, state)
    stateN = Tanh(both)
    rate = Cast<to = 1>(sr)
    scaled = Div(stateN, rate)
    y = MatMul(scaled, v)
}"""


def streaming() -> onnx.ModelProto:
    return tiny.model(STREAMING, {"w": tiny.normal(256, 4), "v": tiny.normal(4, 4)})


def test_states_come_from_the_pieces_before(tmp_path: Path) -> None:
    """As of a detector of speech that gets a piece at a time: its state, and the rate as a number."""
    made = streaming()
    model, path = tiny.read(made), tiny.save(made, tmp_path)
    corpora.sound(tmp_path / "s.wav", seconds=0.1)
    data = open_data(tmp_path / "s.wav", inputs_of(model), RAW, model=model, path=path)
    samples: list[Feed] = list(data)
    assert len(samples) == 6 and not samples[0]["state"].any()
    assert all(sample["sr"] == 16000 and sample["sr"].shape == () for sample in samples)
    for before, after in itertools.pairwise(samples[:5]):
        _, left = tiny.evaluate(made, **before)
        np.testing.assert_allclose(after["state"], left, rtol=1e-5, atol=1e-6)


SPEAKER = """m (int64[b,d] input_ids, float[b,e,8] encoder_hidden_states, float[b,1,past,8] past_key_values__0__key)
    => (float[b,d,32] logits, float[b,1,t,8] present__0__key) {
    x = Gather(table, input_ids)
    heads = Unsqueeze(x, one)
    present__0__key = Concat<axis = 2>(past_key_values__0__key, heads)
    mean = ReduceMean<axes = [1]>(encoder_hidden_states)
    both = Add(x, mean)
    logits = MatMul(both, w)
}"""


def test_a_decoder_of_speech_hears_the_encoder_and_speaks_itself(tmp_path: Path) -> None:
    tables = {"table": tiny.normal(32, 8) * 4, "w": tiny.normal(8, 32), "one": np.array([1], np.int64)}
    made = corpora.dotted(tiny.model(SPEAKER, tables))
    text = """m (float[b,20,100] input_features) => (float[b,100,8] h) {
        x = Transpose<perm=[0,2,1]>(input_features)
        h = MatMul(x, w)
    }"""
    tiny.save(tiny.model(text, {"w": tiny.normal(20, 8)}), tmp_path, "encoder_model.onnx")
    (tmp_path / "config.json").write_text(json.dumps({"decoder_start_token_id": 5}))
    model, path = tiny.read(made), tiny.save(made, tmp_path)
    corpora.sound(tmp_path / "s.wav", seconds=2)
    data = open_data(tmp_path / "s.wav", inputs_of(model), parse("mel=20"), model=model, path=path)
    prompt, step, next_prompt, _ = data
    assert step["encoder_hidden_states"].tolist() == prompt["encoder_hidden_states"].tolist()
    assert next_prompt["encoder_hidden_states"].tolist() != prompt["encoder_hidden_states"].tolist()
    assert prompt["encoder_hidden_states"].shape == (1, 100, 8)
    assert prompt["input_ids"][0, 0] == 5 and prompt["past_key_values.0.key"].shape[2] == 0
    logits, _ = tiny.evaluate(made, **prompt)
    assert np.argmax(logits[0, :-1], -1).tolist() == prompt["input_ids"][0, 1:].tolist(), "the likeliest token follows"
    assert step["past_key_values.0.key"].shape[2] > 0 and step["input_ids"].shape == (1, 1)


def _header(samples: int, rate: int = 16000, channels: int = 1, data: bytes = b"") -> bytes:
    """Of a wav file of 16 bits that says it holds so many samples."""
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * 2 * channels, 2 * channels, 16)
    size = min(2 * channels * samples, 0xFFFFFFFF)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", min(len(body) + size, 0xFFFFFFFF)) + body


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a readable sound"),
        (b"RIFF", "is not a readable sound"),
        (b"no sound at all, but text", "is not a readable sound"),
        (_header(1 << 31), "holds no sound: its header may say otherwise|is not a readable sound"),
        (_header(0), "holds no sound|is not a readable sound"),
        (_header(100, rate=0, data=b"\1\2" * 100), "is not a readable sound|holds no sound"),
        (_header(100, channels=0, data=b"\1\2" * 100), "is not a readable sound"),
        (_header(100, channels=30000, data=b"\1\2" * 100), "is not a readable sound|holds no sound"),
    ],
    ids=["empty", "short", "text", "lying", "none", "no rate", "no channel", "channels"],
)
def test_sounds_that_are_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "s.wav").write_bytes(content)
    with pytest.raises(BadData, match=message):
        list(open_data(tmp_path, WAVE, RAW))


def test_a_lying_header_takes_no_memory(tmp_path: Path) -> None:
    """It says four gigabytes, or a rate of two billion; what is there is read."""
    (tmp_path / "s.wav").write_bytes(_header(1 << 31, data=b"\1\2" * 500))
    (sample,) = open_data(tmp_path, WAVE, RAW)
    assert sample["input_values"].shape == (1, 500)
    (tmp_path / "s.wav").write_bytes(_header(500, rate=0x7FFFFFF0, data=b"\1\2" * 500))
    with pytest.raises(BadData, match="is not a readable sound"):
        list(open_data(tmp_path, WAVE, RAW))


def test_numbers_that_are_none(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "s.wav", np.array([0, np.nan, 0], np.float32), 16000, subtype="FLOAT")
    with pytest.raises(BadData, match="holds samples that are not finite numbers"):
        list(open_data(tmp_path, WAVE, RAW))


def test_silence_has_a_spectrum() -> None:
    for style in spectrum.STYLES:
        found = features(np.zeros(16000, np.float32), Sound(mel=40, style=style))
        assert np.isfinite(found).all() and np.ptp(found) == 0
    assert np.isfinite(features(np.zeros(16, np.float32), Sound(normalize=True))).all()


@pytest.mark.parametrize("samples", [1, 100, 399])
@pytest.mark.parametrize("style", spectrum.STYLES)
def test_short_sounds_have_a_spectrum(samples: int, style: str) -> None:
    found = features(np.ones(samples, np.float32), Sound(mel=20, style=style))
    assert found.shape[1] == 20 and np.isfinite(found).all()


def test_words() -> None:
    how = parse("mel=64 rate=8000 window=200 hop=80 fft=256 style=kaldi low=20 high=3800 frames=50 mean=-4 std=9")
    assert how == Sound(8000, 64, 200, 80, 256, "kaldi", 20.0, 3800.0, 0.0, 50, False, -4.0, 9.0)
    assert parse("rate=16000 normalize") == Sound(normalize=True)


@pytest.mark.parametrize("word", ["rate=0", "mel=x", "hop=-1", "style=loud", "size=3x3", "seconds=0", "std=0"])
def test_words_that_are_not_understood(word: str) -> None:
    expected = f"--preprocess: invalid setting '{word}'; valid settings for sounds: rate=16000"
    with pytest.raises(BadRecipe, match=expected):
        parse(f"rate=16000 {word}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rate=1000000000", "rate=1000000000 is more than"),
        ("mel=80 window=100000000", "window=100000000 is more than"),
        ("mel=100000000", "mel=100000000 is more than"),
        ("mel=80 window=400 fft=200", "window <= fft"),
        ("mel=80 low=9000", "low < high"),
        ("mel=80 low=7999.999999999999 high=8000", "low < high"),
        ("mel=80 high=inf", "high=inf is more than the 384000 that make sense"),
        ("seconds=0.00001", "seconds=1e-05 is less than one sample at rate=16000"),
        ("mel=80 std=1e-320", "rate and std are positive numbers, .* none beyond 1e±12"),
        ("mel=80 mean=1e308 std=1e-12", "mean is a number, none beyond 1e±12"),
    ],
)
def test_spectrograms_that_make_no_sense(words: str, message: str) -> None:
    with pytest.raises(BadRecipe, match=message):
        parse(words)


def test_extractors_that_make_no_sense(tmp_path: Path) -> None:
    whisper = {"feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 16000}
    for wrong, message in (({"n_fft": 0}, "0 < window <= fft"), ({"chunk_length": 1e-5}, "less than one sample")):
        (tmp_path / "p.json").write_text(json.dumps(whisper | wrong))
        with pytest.raises(BadRecipe, match=message):
            load_processor(tmp_path / "p.json")


def test_sounds_need_a_preprocessing_and_an_input(tmp_path: Path) -> None:
    corpora.sound(tmp_path / "s.wav")
    with pytest.raises(BadData, match="holds sounds: declare what the model was trained on"):
        list(open_data(tmp_path, WAVE))
    with pytest.raises(BadData, match="holds sounds, but no input of the model is one"):
        list(open_data(tmp_path, (Input("ids", np.dtype(np.int64), (None, 3)),), RAW))
    (tmp_path / "p.json").write_text(
        json.dumps({"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 8000})
    )
    assert load_processor(tmp_path / "p.json") == Sound(rate=8000, normalize=True)


@pytest.mark.parametrize(
    ("shape", "words", "message"),
    [
        (("b", "frames", 161), "rate=16000", r"\['b', 'frames', 161\] is no wave form: give mel=BANDS"),
        (("b", "t"), "mel=80", "is no spectrogram of 80 bands: leave out mel"),
        ((1, 64, 100), "mel=80", r"shape \[1, 80, 100\], the model expects \[1, 64, 100\]"),
    ],
)
def test_inputs_that_are_something_else(tmp_path: Path, shape: tuple[Any, ...], words: str, message: str) -> None:
    corpora.sound(tmp_path / "s.wav")
    with pytest.raises(BadData, match=message):
        list(open_data(tmp_path, (Input("x", F32, shape),), parse(words)))


@pytest.mark.parametrize("style", spectrum.STYLES)
def test_frames_are_transformed_some_at_a_time(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wave = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    whole = features(wave, Sound(mel=40, style=style))
    monkeypatch.setattr(spectrum, "AT_ONCE", 3000)
    np.testing.assert_allclose(features(wave, Sound(mel=40, style=style)), whole, rtol=1e-5, atol=1e-6)


def test_a_spectrogram_of_any_size_is_not_made() -> None:
    with pytest.raises(BadRecipe, match="480000 frames of 400 samples in 1024 bands is too large; give a longer"):
        features(np.zeros(480_000, np.float32), Sound(mel=1024, hop=1))
    with pytest.raises(BadRecipe, match="480000 frames of 65536 samples in 1 bands is too large"):
        features(np.zeros(480_000, np.float32), Sound(mel=1, hop=1, window=1 << 16))


def test_a_spectrogram_of_a_long_sound_is_made() -> None:
    found = features(np.zeros(16000 * 600, np.float32), Sound(mel=1, style="plain"))
    assert found.shape == (60001, 1)
