"""Sounds made up: what noise alone never shows a model, such as silence, bursts, tones, and voices with pauses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from onnxq.made_up import batches

#: Samples a second, where the model does not say.
RATE = 16000.0
#: Sounds of one sample that are made one by one; where an input has more channels, the others are these, later.
DIFFERENT = 8
#: Steps of spectrograms, and samples of waveforms, that are computed, of a batch together: behind them the same sounds
#: begin again.
STEPS, SAMPLES = 1 << 14, 1 << 21

Sound = Callable[[np.random.Generator, int], NDArray[np.float64]]


def silence_and_a_burst(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    x = 1e-4 * rng.standard_normal(n)
    start, length = int(rng.uniform(0.3, 0.7) * n), max(1, n // 50)
    burst = rng.standard_normal(n)[:length] * np.exp(-np.linspace(0, 5, length))
    x[start : start + length] += 0.8 * burst[: len(x[start : start + length])]
    return x


def tone(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    frequency = 440.0 * 2 ** rng.uniform(-1.5, 1.5)
    return 0.5 * np.sin(2 * math.pi * frequency / RATE * np.arange(n)) + 1e-4 * rng.standard_normal(n)


def voice(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Harmonics of a gliding pitch under formants, in syllables with pauses between them."""
    t = np.arange(n) / RATE
    seconds = n / RATE
    pitch = rng.uniform(90, 240) * (1 + 0.15 * np.sin(2 * math.pi * rng.uniform(0.5, 1.5) * t + rng.uniform(0, 6)))
    phase = 2 * math.pi * np.cumsum(pitch) / RATE
    formants = rng.uniform((300, 900, 2200), (800, 2000, 3200))
    x = np.zeros(n)
    for k in range(1, 24):
        frequency = k * float(pitch.mean())
        if frequency < RATE / 2:
            x += np.sin(k * phase) * sum(math.exp(-(((frequency - f) / 180.0) ** 2)) for f in formants) + 0.02 * np.sin(
                k * phase
            )
    syllables = max(1.0, 4 * seconds)
    envelope = np.clip(np.sin(math.pi * syllables * np.arange(n) / max(1, n) + rng.uniform(0, 1)), 0, None) ** 1.5
    x *= envelope / max(1e-9, float(abs(x).max()))
    return 0.4 * x + 3e-4 * rng.standard_normal(n)


def noise(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    return 0.3 * rng.standard_normal(n)


def faint_noise(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    return 0.005 * rng.standard_normal(n)


SOUNDS: Mapping[str, Sound] = {
    "voice": voice,
    "silence and a burst": silence_and_a_burst,
    "a tone": tone,
    "noise": noise,
    "faint noise": faint_noise,
}
#: log-mel spectrograms as they come, by what is called what: (lowest, highest) of the logarithm of the power.
_DECADES = 8.0
#: How the decades of a spectrogram are written, by what a scale is called.
SPECTRUM_SCALES: Mapping[str, tuple[float, float]] = {"in −1…1": (-1.0, 1.0), "in decades": (-_DECADES, 0.5)}


def waveform(rng: np.random.Generator, sound: str, shape: tuple[int, ...], axis: int) -> NDArray[np.float32]:
    """Different sounds of one kind along `axis`."""
    moved = [n for i, n in enumerate(shape) if i != axis % len(shape)]
    count = math.prod(moved)
    drawn = min(shape[axis], SAMPLES // max(1, min(count, DIFFERENT)))
    rows = [SOUNDS[sound](rng, drawn) for _ in range(min(count, DIFFERENT))]
    later = range(DIFFERENT, min(count, batches.DIFFERENT))
    rows += [np.roll(rows[i % DIFFERENT], i * drawn // count) for i in later]
    made = batches.repeated(batches.batch(iter(rows).__next__, count).astype(np.float32), shape[axis], 1)
    return np.moveaxis(np.reshape(made, (*moved, shape[axis])), -1, axis)


def spectrogram(
    rng: np.random.Generator, sound: str, scale: str, shape: tuple[int, ...], axis: int
) -> NDArray[np.float32]:
    """The logarithm of the power of sounds in bands, time along `axis`."""
    low, high = SPECTRUM_SCALES[scale]
    axis %= len(shape)
    bands_axis = max((i for i in range(len(shape)) if i not in (0, axis)), key=lambda i: shape[i], default=0)
    steps, bands = shape[axis], shape[bands_axis]
    moved = [n for i, n in enumerate(shape) if i not in (axis, bands_axis)]
    drawn = min(steps, STEPS)
    rows = batches.batch(
        lambda: _bands(SOUNDS[sound](rng, 160 * drawn + 400), drawn, bands),
        math.prod(moved),
        min(batches.DIFFERENT, STEPS // drawn),
    )
    made = np.reshape(batches.repeated(rows, steps, -1), (*moved, bands, steps)) * (high - low) + low
    return np.moveaxis(made, (-2, -1), (bands_axis, axis)).astype(np.float32)


def _bands(x: NDArray[np.float64], steps: int, bands: int) -> NDArray[np.float64]:
    """[bands, steps]: decades of power between the quietest that is told apart and full scale, as 0…1."""
    frames = np.lib.stride_tricks.sliding_window_view(x, 400)[: 160 * steps : 160]
    power = np.abs(np.fft.rfft(frames * np.hanning(400), 512)) ** 2
    mel = np.linspace(0, 2595 * math.log10(1 + RATE / 2 / 700), bands + 1)
    edges = np.clip((700 * (10 ** (mel / 2595) - 1)) / (RATE / 2) * power.shape[1], 0, power.shape[1] - 1).astype(int)
    found = np.add.reduceat(power, edges[:-1], axis=1) / 1e4
    return np.clip(1 + np.log10(np.maximum(found, 1e-30)) / _DECADES, 0, 1).T
