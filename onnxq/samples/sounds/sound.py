"""Inputs made of sounds: wave forms, or log-mel spectrograms, at the rate that a model was trained on."""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData, BadRecipe, MissingRuntime, first_line
from onnxq.runtime.session import Feed, Input
from onnxq.samples.normal import RANGE, are_deviations, are_means
from onnxq.samples.sounds import spectrum

SOUND_SUFFIXES = {".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif"}
#: A sound in memory, as tables hold them, or a file.
Source = bytes | Path
#: Seconds of a sound that are read at most where neither the model nor the user says how many.
SECONDS = 30.0
#: Samples made of one sound at most, where the model takes short pieces.
MOST_WINDOWS = 64
#: Samples a second that a file may have, and channels.
MOST_RATE, MOST_CHANNELS = 384_000, 64
#: Samples that a piece of sound is filled up to: an hour at 16 kHz.
MOST_SAMPLES = 1 << 26
#: Windows that may hold the same sample, where so many samples are transformed: each takes its time.
MOST_OVERLAP = 8
#: How far apart the ends of the bands are at least, of the upper one: between them bands must not fall together.
LEAST_RANGE = 1e-6
_SIGNAL = re.compile(r"input_features|input_values|audio|wav|speech|signal|fbank|mel|feat")


@dataclass(frozen=True)
class Sound:
    """
    Attributes:
        rate: samples a second.
        mel: bands of the spectrogram; 0: the wave form itself.
        window, hop, fft: in samples; an fft of 0 is the window's, for Kaldi the next power of two.
        style: how a spectrogram is computed, a word of `spectrum.STYLES`.
        low, high: hertz between which the bands lie; a high of 0 is half the rate.
        seconds: length that every sound is cut or filled up to; 0: the model's, or its own.
        frames: length of the spectrogram likewise.
        normalize: the wave form gets mean 0 and variance 1.
        mean, std: of the numbers, taken off and divided by.
    """

    rate: int = 16000
    mel: int = 0
    window: int = 400
    hop: int = 160
    fft: int = 0
    style: str = "whisper"
    low: float = 0.0
    high: float = 0.0
    seconds: float = 0.0
    frames: int = 0
    normalize: bool = False
    mean: float = 0.0
    std: float = 1.0


#: Words of `--preprocess` that only sounds have.
OWN_WORDS = {"rate", "mel", "window", "hop", "fft", "style", "low", "high", "seconds", "frames", "normalize"}
_KNOWN = (
    "rate=16000 mel=80 window=400 hop=160 fft=400 style=whisper|kaldi|plain low=0 high=8000 seconds=30 frames=1024 "
    "normalize mean=0 std=1"
)


def parse_sound(text: str) -> Sound:
    """From words like `mel=80 rate=16000 window=400 hop=160`.

    Raises:
        BadRecipe: a word that is not understood.
    """
    found: dict[str, Any] = {}
    for word in text.replace(";", " ").split():
        key, _, value = word.partition("=")
        try:
            if key == "normalize":
                found[key] = value in ("", "1", "true", "yes")
            elif key == "style" and value in spectrum.STYLES:
                found[key] = value
            elif key in ("rate", "mel", "window", "hop", "fft", "frames"):
                found[key] = int(value)
            elif key in ("low", "high", "seconds", "std", "mean"):
                found[key] = float(value)
            else:
                raise ValueError
            if key not in ("mel", "low", "mean", "normalize", "style") and not found[key] > 0:
                raise ValueError
        except (ValueError, OverflowError):
            raise BadRecipe(f"--preprocess: invalid setting '{word}'; valid settings for sounds: {_KNOWN}") from None
    return checked(Sound(**found))


def checked(sound: Sound) -> Sound:
    """`sound`, if a spectrogram can be computed like that."""
    fft = sound.fft or sound.window
    limits: dict[str, tuple[float, int]] = {
        "rate": (sound.rate, MOST_RATE),
        "mel": (sound.mel, 1024),
        "window": (fft, 1 << 16),
        "hop": (sound.hop, 1 << 16),
        "high": (sound.high, MOST_RATE),
        "seconds": (sound.seconds, MOST_SAMPLES // max(1, sound.rate)),
        "frames": (sound.frames, MOST_SAMPLES // max(1, sound.hop, sound.mel)),
    }
    for word, (number, most) in limits.items():
        if not 0 <= number <= most:
            why = f"more than the {most} that make sense" if number > most else "less than nothing"
            is_long = isinstance(number, int) and number > 10**12
            raise BadRecipe(f"--preprocess: {word}={'(more than 10^12)' if is_long else number} is {why}")
    if not (sound.rate and are_means([sound.mean]) and are_deviations([sound.std])):
        raise BadRecipe(f"--preprocess: rate and std are positive numbers, and mean is a number, {RANGE}")
    if sound.seconds and not round(sound.seconds * sound.rate):
        raise BadRecipe(f"--preprocess: seconds={sound.seconds} is less than one sample at rate={sound.rate}")
    high = (sound.high or sound.rate / 2) * (1 - LEAST_RANGE)
    if sound.mel and not (0 < sound.window <= fft and sound.hop > 0 and 0 <= sound.low < high):
        raise BadRecipe("--preprocess: a spectrogram needs 0 < window <= fft, hop > 0 and low < high")
    return sound


def _fft(sound: Sound) -> int:
    return sound.fft or (1 << (sound.window - 1).bit_length() if sound.style == "kaldi" else sound.window)


@functools.lru_cache
def _filters(sound: Sound) -> NDArray:
    scale: spectrum.Scale = "kaldi" if sound.style == "kaldi" else "slaney"
    high = sound.high or sound.rate / 2
    return spectrum.mel_filters(sound.mel, _fft(sound), sound.rate, sound.low, high, scale)


def features(wave: NDArray, sound: Sound) -> NDArray:
    """The wave form [samples], or the spectrogram [frames, mels].

    Raises:
        BadRecipe: that would be too large.
    """
    if sound.normalize:
        wave = (wave - wave.mean()) / np.sqrt(wave.var() + 1e-7)
    if not sound.mel:
        return ((wave - sound.mean) / sound.std).astype(np.float32)
    frames, fft = len(wave) // sound.hop, _fft(sound)
    if frames * max(sound.mel, fft // MOST_OVERLAP) > MOST_SAMPLES:
        raise BadRecipe(
            f"--preprocess: a spectrogram of {frames} frames of {fft} samples in {sound.mel} bands is too large; "
            "give a longer hop"
        )
    found = spectrum.STYLES[sound.style](wave, _filters(sound), sound.window, sound.hop, fft)
    if sound.frames:
        found = _filled(found, sound.frames)
    return ((found - sound.mean) / sound.std).astype(np.float32)


def read_wave(source: Source, where: str, rate: int, start: int, length: int) -> NDArray[np.float32]:
    """`length` samples at most from sample `start` on, at `rate`, all channels mixed.

    Raises:
        MissingRuntime, BadData: the library for it is missing, or it is no sound.
    """
    try:
        with _open(source, where) as file:
            if not (0 < file.samplerate <= MOST_RATE and 0 < file.channels <= MOST_CHANNELS):
                raise ValueError(f"{file.samplerate} samples a second in {file.channels} channels")
            step = file.samplerate / rate
            file.seek(min(round(start * step), file.frames))
            wave = file.read(max(1, round(length * step)), dtype="float32", always_2d=True).mean(axis=1)
            own = file.samplerate
    except (OSError, RuntimeError, ValueError, MemoryError) as error:  # soundfile's errors are RuntimeErrors
        raise BadData(f"{where} is not a readable sound: {first_line(error)}") from None
    if not len(wave):
        raise BadData(f"{where} holds no sound: its header may say otherwise")
    if not np.isfinite(wave).all():
        raise BadData(f"{where} holds samples that are not finite numbers")
    return wave if own == rate else _resampled(wave, own, rate)


def _open(source: Source, where: str) -> Any:
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: without libsndfile
        raise MissingRuntime("reading sounds needs soundfile: pip install 'onnxq[audio]'") from None
    try:
        return soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else str(source))
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise BadData(f"{where} is not a readable sound: {first_line(error)}") from None


def _resampled(wave: NDArray, own: int, rate: int) -> NDArray[np.float32]:
    try:
        import soxr
    except ImportError:
        raise MissingRuntime(
            f"a sound of {own} samples a second becomes one of {rate} by soxr: pip install 'onnxq[audio]'"
        ) from None
    return soxr.resample(wave, own, rate)


class SoundInputs:
    """Makes those inputs of a model that follow from a sound.

    Attributes:
        names: of the inputs it makes.
    """

    def __init__(self, inputs: Sequence[Input], sound: Sound | None, source: str) -> None:
        floats = [i for i in inputs if i.dtype.kind == "f" and i.shape]
        self.signal = next((i for i in floats if _SIGNAL.search(i.name.lower())), floats[0] if floats else None)
        if self.signal is None:
            raise BadData(f"{source} holds sounds, but no input of the model is one: they are floating-point")
        if sound is None:
            raise BadData(
                f"{source} holds sounds: declare what the model was trained on, for instance --preprocess "
                "'mel=80 rate=16000', 'rate=16000' for wave forms, or its preprocessor_config.json"
            )
        self.sound = sound
        self.extras = {i.name: i for i in inputs if i is not self.signal and _extra(i) is not None}
        self.names = (self.signal.name, *self.extras)
        shape = self.signal.shape or ()
        axes = [axis for axis in range(len(shape)) if axis > 0 or len(shape) == 1 + bool(sound.mel)]
        is_wave = len(shape) < 3 or 1 in shape[1:] or shape[1] is None or "chan" in str(shape[1])
        is_spectrogram = len(shape) > 2 or (len(shape) == 2 and shape[1] == sound.mel)
        if not (is_spectrogram if sound.mel else is_wave):
            wrong = (
                f"no spectrogram of {sound.mel} bands: leave out mel" if sound.mel else "no wave form: give mel=BANDS"
            )
            raise BadData(f"{source}: '{self.signal.name}' of shape {list(shape)} is {wrong} in --preprocess")
        self.is_mel_first = self._mel_first(shape, axes)
        # Time is the last axis, or the one before it where bands follow; a channel may come behind both.
        behind = len(shape) == 3 + bool(sound.mel) and shape[-1] == 1 and shape[1] != 1
        time = len(shape) - 1 - (bool(sound.mel) and not self.is_mel_first) - behind
        self.width = size if isinstance(size := shape[time] if shape else None, int) and size > 0 else None

    def _mel_first(self, shape: tuple[int | str | None, ...], axes: list[int]) -> bool:
        """Whether bands come before frames: where the model's sizes leave it open, as Whisper has it, and not Kaldi."""
        if not self.sound.mel or len(axes) < 2:
            return False
        last = axes[-2:] if len(shape) < 4 or shape[3] != 1 else [1, 2]
        first, second = (shape[axis] == self.sound.mel for axis in last)
        return first if first is not second else self.sound.style != "kaldi"

    @property
    def span(self) -> tuple[int, bool]:
        """(samples of one piece, whether shorter sounds are filled up to it)."""
        s, frames = self.sound, self.width or self.sound.frames
        if s.seconds:
            return round(s.seconds * s.rate), True
        if not s.mel and self.width:
            return self.width, True
        if s.mel and frames:
            around = {"whisper": 0, "kaldi": s.window - s.hop, "plain": -s.hop if frames > 1 else 0}[s.style]
            return frames * s.hop + around, s.style == "whisper"
        return round(SECONDS * s.rate), False

    def windows(self, source: Source) -> int:
        """Pieces in a sound, by its header: what is left over at the end is no piece of its own."""
        where = "a sound" if isinstance(source, bytes) else str(source)
        with _open(source, where) as file:
            samples = file.frames * self.sound.rate / max(1, file.samplerate)
        return max(1, min(MOST_WINDOWS, math.floor(samples / self.span[0])))

    def feeds(self, source: Source, first: int, last: int, where: str) -> list[Feed]:
        """Of the pieces `first` … `last`."""
        return [self._feed(source, window, where) for window in range(first, last + 1)]

    def _feed(self, source: Source, window: int, where: str) -> Feed:
        span, is_filled = self.span
        wave = read_wave(source, where, self.sound.rate, window * span, span)[:span]
        samples = len(wave)
        x = features(_filled(wave, span) if is_filled else wave, self.sound)
        if self.width:
            x = _filled(x, self.width)
        if self.is_mel_first:
            x = x.T
        assert self.signal is not None
        length = x.shape[-1 if self.is_mel_first or x.ndim == 1 else 0]
        made = {"mask": np.ones(length, np.int64), "rate": np.array(self.sound.rate), "count": np.array(length)}
        if is_filled and not self.sound.mel:
            made["mask"][samples:] = 0
        extras = {name: _batched(made[_extra(i) or ""], i) for name, i in self.extras.items()}
        return {self.signal.name: _batched(x, self.signal).astype(self.signal.dtype), **extras}


def _extra(i: Input) -> str | None:
    name = i.name.lower()
    if i.dtype.kind not in "iub":
        return None
    return next(
        (w for w, p in (("mask", "mask"), ("rate", r"^sr$|rate"), ("count", "len")) if re.search(p, name)), None
    )


def _filled(x: NDArray, length: int) -> NDArray:
    """Cut, or filled up with zeros, to `length` along axis 0."""
    return x[:length] if len(x) >= length else np.pad(x, [(0, length - len(x))] + [(0, 0)] * (x.ndim - 1))


def _batched(x: NDArray, i: Input) -> NDArray:
    """`x` of one sound with the axes of its input: new ones in front, or behind where that one is the channel."""
    shape = i.shape or ()
    missing = len(shape) - x.ndim
    if missing > 1 and shape[-1] == 1 and shape[1] != 1:
        x, missing = x[..., None], missing - 1
    x = x.reshape((1,) * max(0, missing) + x.shape if shape else ())
    batch = shape[0] if missing > 0 and isinstance(shape[0], int) and shape[0] > 1 else 1
    return np.repeat(x, batch, axis=0) if batch > 1 else x
