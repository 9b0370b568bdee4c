"""What an input is for, judged by its name, its type, its shape and what reads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import onnx_ir as ir

from onnxq.made_up.dims import is_free
from onnxq.made_up.names import is_stepped, key
from onnxq.made_up.names import words as words_of
from onnxq.made_up.uses import Uses, uses_of
from onnxq.runtime.session import Input

#: An axis of at least so many numbers is time, if there is nothing else beside it.
LONG_AXIS = 1000
#: Integers are words, or bytes, where so many of them are in a row and no name says anything else.
LEAST_WORDS = 16
#: Bands of spectrograms, where nothing but the shape tells that it is one.
_BANDS = (40, 64, 80, 128)


class Role(StrEnum):
    TOKENS = "tokens"
    SEGMENTS = "segments"
    POSITIONS = "positions"
    MASK = "mask"
    CACHE = "cache"
    LENGTH = "length"
    SWITCH = "switch"
    COUNT = "count"
    TEXT = "text"
    IMAGE = "image"
    AUDIO = "audio"
    SPECTRUM = "spectrum"
    FEATURES = "features"


#: Roles of which several kinds are made up, and how long their free axes are where nothing is known: what people run.
CARRIERS = {Role.IMAGE: 224, Role.AUDIO: 16000, Role.SPECTRUM: 128, Role.FEATURES: 32, Role.TOKENS: 128}


@dataclass(frozen=True)
class Part:
    """An input and what it is for.

    Attributes:
        rows: of the smallest table that its integers look up; None where they look up none.
        columns: of the table that each column looks up, where each has its own.
        channels: axis of an image's colours.
        time: axis along which things happen.
        compared: numbers that it is compared with somewhere.
        sought: numbers whose place in it the model looks for.
    """

    input: Input
    role: Role
    rows: int | None = None
    channels: int = 1
    time: int = -1
    compared: tuple[int, ...] = ()
    sought: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.input.name

    @property
    def axes(self) -> tuple[int, ...]:
        """Those along which its content lies: height and width, or time."""
        rank = len(self.input.shape or ())
        if self.role is Role.IMAGE:
            return tuple(axis for axis in (1, 2, 3) if axis != self.channels)
        return (self.time % rank,) if rank > 1 else tuple(range(rank))


def parts_of(model: ir.Model, inputs: tuple[Input, ...]) -> list[Part]:
    """Every input with its role."""
    values = {value.name: value for value in model.graph.inputs}
    written = {key(value.name or "") for value in model.graph.outputs}
    found = []
    for number, i in enumerate(inputs):
        is_written = is_stepped(i.name) and key(i.name) in written
        is_named = number > 0 and _is_state_by_name(i)
        found.append(_part(i, values.get(i.name), is_written or is_named))
    return found


def _is_state_by_name(i: Input) -> bool:
    """Whether a name says that an input is what a recurrent model left for itself; not if it is the only one."""
    found = set(words_of(i.name))
    return bool(found & {"state", "hidden", "memory"}) and "states" not in found


def _part(i: Input, value: ir.Value | None, is_state: bool) -> Part:
    uses = Uses() if value is None else uses_of(value)
    rows, compared = uses.rows, uses.compared
    words, rank = set(words_of(i.name)), len(i.shape or ())
    if i.dtype.kind == "O":
        return Part(i, Role.TEXT)
    if i.dtype.kind == "b":
        return Part(i, Role.SWITCH if _is_single(i) else Role.MASK)
    is_image = rank == 4 and (axis := _channel_axis(i)) is not None
    if i.dtype.kind in "iu" and not (i.dtype.itemsize == 1 and is_image and rows is None):
        role, time = _integer_role(i, words, rows), _word_axis(i)
        return Part(i, role, rows, time=time, compared=compared, sought=uses.sought, columns=uses.columns)
    if words & {"mask", "masks"}:
        return Part(i, Role.MASK)
    has_past = any(isinstance(dim, str) and "past" in dim.lower() for dim in i.shape or ())
    if is_state or has_past or words & {"past", "cache"}:
        return Part(i, Role.CACHE)
    if _is_single(i):
        return Part(i, Role.SWITCH if compared else Role.FEATURES, compared=compared)
    is_spectrum = bool(words & {"mel", "mels", "spec", "spectrogram", "mfcc", "fbank", "fbanks", "logmel"})
    if is_spectrum or "input_features" in i.name or (rank == 3 and _is_spectrogram(i)):
        return Part(i, Role.SPECTRUM, time=_time_axis(i))
    if rank == 4 and (axis := _channel_axis(i)) is not None:
        return Part(i, Role.IMAGE, channels=axis)
    if _is_audio(i, words):
        return Part(i, Role.AUDIO, time=_time_axis(i))
    return Part(i, Role.FEATURES, time=1 if rank == 3 else -1)


def _is_single(i: Input) -> bool:
    return i.shape is not None and all(dim == 1 for dim in i.shape)


def _integer_role(i: Input, words: set[str], rows: int | None) -> Role:
    if "mask" in words:
        return Role.MASK
    if words & {"position", "positions"}:
        return Role.POSITIONS
    if words & {"segment", "segments"} or {"token", "type"} <= words:
        return Role.SEGMENTS
    rank = len(i.shape or ())
    if rank <= 1 and words & {"len", "lens", "length", "lengths", "seqlens"}:
        return Role.LENGTH
    if rows is not None or (rank == 2 and words & {"ids", "tokens"}) or (rank > 1 and _is_long(i)):
        return Role.TOKENS
    return Role.SWITCH if _is_single(i) else Role.COUNT


def _is_long(i: Input) -> bool:
    """Whether an input is a row of many numbers: words, or bytes."""
    return not is_free((i.shape or (None,))[-1]) and int((i.shape or (0,))[-1] or 0) >= LEAST_WORDS


def _channel_axis(i: Input) -> int | None:
    """The axis of an image's one, three or four colours; None if it is none."""
    shape = i.shape or ()
    for axis in (1, 3):
        others = [shape[a] for a in (1, 2, 3) if a != axis]
        if shape[axis] in (1, 3, 4) and all(is_free(dim) or int(dim or 0) >= 8 for dim in others):
            return axis
    return 1 if all(is_free(dim) for dim in shape[1:]) else None


def _is_spectrogram(i: Input) -> bool:
    """Bands beside a free or longer time axis; a hidden state of so few numbers has a name that says so."""
    shape = i.shape or ()
    if set(words_of(i.name)) & {"hidden", "embed", "embeds", "embeddings", "states"}:
        return False
    bands, other = (shape[1], shape[2]) if shape[1] in _BANDS else (shape[2], shape[1])
    return bands in _BANDS and (is_free(other) or int(other or 0) >= 16)


def _is_audio(i: Input, words: set[str]) -> bool:
    """A long or free axis, and no other of more than one number beside the batch."""
    shape = i.shape or ()
    if i.dtype.kind != "f" or len(shape) not in (2, 3) or "embeds" in words:
        return False
    rest = [dim for dim in shape[1:] if dim != 1]
    if len(rest) != 1:
        return bool(words & {"audio", "wave", "waveform", "speech", "wav", "pcm"}) and len(shape) == 2
    return is_free(rest[0]) or int(rest[0] or 0) >= LONG_AXIS


def _time_axis(i: Input) -> int:
    """The free axis behind the batch, else the longest."""
    axes = range(1, len(i.shape or ()))
    free = [axis for axis in axes if is_free((i.shape or ())[axis])]
    return free[-1] if free else max(axes, key=lambda axis: int((i.shape or ())[axis] or 0), default=-1)


def _word_axis(i: Input) -> int:
    """The second axis, unless the first is named for time."""
    first = (i.shape or (None,))[0]
    is_time = isinstance(first, str) and any(word in first.lower() for word in ("time", "seq", "len"))
    return 0 if is_time else min(1, len(i.shape or ()) - 1)
