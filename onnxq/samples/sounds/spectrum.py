"""Log-mel spectrograms in numpy: as Whisper computes them, as Kaldi does, and plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Scale = Literal["slaney", "kaldi"]
#: What Kaldi adds to no power: the epsilon of float32.
_KALDI_FLOOR = 1.192092955078125e-07
#: Numbers of frames that are transformed together.
AT_ONCE = 1 << 24
#: Slaney's scale is linear up to 1 kHz, which is 15 mels, and logarithmic above, 27 mels for a factor of 6.4.
_CORNER, _CORNER_MELS, _STEP = 1000.0, 15.0, 27.0 / np.log(6.4)


def mels(hertz: NDArray, scale: Scale) -> NDArray:
    """Frequencies on a mel scale."""
    if scale == "kaldi":
        return 1127.0 * np.log(1.0 + hertz / 700.0)
    above = _CORNER_MELS + np.log(np.maximum(hertz, _CORNER) / _CORNER) * _STEP
    return np.where(hertz < _CORNER, hertz * _CORNER_MELS / _CORNER, above)


def _hertz(mel: NDArray) -> NDArray:
    above = _CORNER * np.exp((np.maximum(mel, _CORNER_MELS) - _CORNER_MELS) / _STEP)
    return np.where(mel < _CORNER_MELS, mel * _CORNER / _CORNER_MELS, above)


def mel_filters(count: int, fft: int, rate: int, low: float, high: float, scale: Scale) -> NDArray:
    """Triangles [fft / 2 + 1, count]: over hertz and of equal areas (Slaney), or over mels and of height 1 (Kaldi)."""
    ends = mels(np.array([low, high], np.float64), scale)
    corners = np.linspace(ends[0], ends[1], count + 2)
    if scale == "kaldi":
        bins = mels(np.arange(fft // 2 + 1) * rate / fft, scale)
    else:
        corners, bins = _hertz(corners), np.linspace(0, rate // 2, fft // 2 + 1)
    widths = np.diff(corners)
    slopes = corners[None, :] - bins[:, None]
    filters = np.maximum(0, np.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]))
    return filters if scale == "kaldi" else filters * (2.0 / (corners[2:] - corners[:-2]))


def _power(frames: NDArray, window: NDArray, fft: int) -> NDArray:
    """The power spectrum of each frame, [frames, fft / 2 + 1]."""
    return np.abs(np.fft.rfft((frames * window).astype(np.float64), fft, axis=-1)) ** 2


def _bands(
    frames: NDArray, window: NDArray, fft: int, filters: NDArray, prepared: Callable[[NDArray], NDArray] | None = None
) -> NDArray:
    """The mel spectrum [frames, mels], of as many frames at a time as fit into little memory."""
    step = max(1, AT_ONCE // max(frames.shape[1], fft))
    parts = (frames[start : start + step] for start in range(0, len(frames), step))
    return np.concatenate(
        [_power(part if prepared is None else prepared(part), window, fft) @ filters for part in parts]
    )


def centred(wave: NDArray, filters: NDArray, window: int, hop: int, fft: int) -> NDArray:
    """The mel spectrum [frames, mels] with frames centred at multiples of `hop`; the ends are mirrored."""
    hann = np.hanning(window + 1)[:-1]
    left = (fft - window) // 2
    hann = np.pad(hann, (left, fft - window - left))
    half = fft // 2
    wave = np.pad(wave, half, mode="reflect" if len(wave) > half else "constant")
    return np.maximum(1e-10, _bands(sliding_window_view(wave, fft)[::hop], hann, fft, filters))


def whisper(wave: NDArray, filters: NDArray, window: int, hop: int, fft: int) -> NDArray:
    """Decibels over the loudest eight orders of magnitude, scaled to about -1 … 1; a last frame less."""
    found = np.log10(centred(wave, filters, window, hop, fft))
    found = found[:-1] if len(found) > 1 else found
    return (np.maximum(found, found.max() - 8.0) + 4.0) / 4.0


def plain(wave: NDArray, filters: NDArray, window: int, hop: int, fft: int) -> NDArray:
    """The natural logarithm of the centred mel spectrum."""
    return np.log(centred(wave, filters, window, hop, fft))


def kaldi(wave: NDArray, filters: NDArray, window: int, hop: int, fft: int) -> NDArray:
    """Kaldi's filter banks: whole frames only, each without its mean, with preemphasis, under a symmetric window."""
    frames = sliding_window_view(np.pad(wave, (0, max(0, window - len(wave)))), window)[::hop]
    return np.log(np.maximum(_KALDI_FLOOR, _bands(frames, np.hanning(window), fft, filters, _emphasized)))


def _emphasized(frames: NDArray) -> NDArray:
    frames = frames.astype(np.float64)
    frames = frames - frames.mean(axis=-1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    return frames - 0.97 * before


STYLES = {"whisper": whisper, "kaldi": kaldi, "plain": plain}
