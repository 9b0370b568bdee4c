"""A record, which is what a file says of one sample, becomes a feed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from onnxq.errors import BadData
from onnxq.runtime.session import Feed, Input
from onnxq.samples.pictures.images import Preprocessing
from onnxq.samples.pictures.processor import load_processor
from onnxq.samples.pictures.scaling import Picture, PictureInputs
from onnxq.samples.reading import Reading
from onnxq.samples.sounds.sound import Sound, SoundInputs, Source
from onnxq.samples.texts import companions, tokenizer
from onnxq.samples.texts.companions import Companions
from onnxq.samples.texts.decoding import Caches, encoder_output, is_state
from onnxq.samples.texts.text import LENGTHS, Step, TextInputs
from onnxq.samples.texts.tokenizer import open_tokenizer

#: Runs of a model with a state before a sample: enough that the state is that of a model in use.
RUNS_BEFORE = 4
#: Tokens that a decoder of speech writes itself before a sample.
WRITTEN = 8


@dataclass(frozen=True)
class Record:
    """
    Attributes:
        where: file and number, for what is to be said of it.
        arrays: by the name of the input.
        window: which piece of a sound that is longer than the model's input.
    """

    where: str
    text: str | None = None
    picture: Picture | None = None
    sound: Source | None = None
    window: int = 0
    arrays: Mapping[str, NDArray] = field(default_factory=dict)


class Maker:
    """Feeds of a model from records that all hold the same: some of text, picture and sound, and some arrays.

    Raises:
        BadData: nothing in the records makes one of the inputs.
    """

    def __init__(
        self,
        inputs: tuple[Input, ...],
        reading: Reading,
        place: Companions,
        kinds: Iterable[str],
        given: Iterable[str] = (),
        source: str = "",
    ) -> None:
        kinds, known = set(kinds), set(given)
        rest = [i for i in inputs if i.name not in known]
        self.place, self.reading, self.inputs = place, reading, inputs
        self.lengths = reading.lengths or LENGTHS
        self.pictures = self.sounds = self.texts = self.encoder = None
        is_decoder_part = any(i.name.startswith("encoder_hidden") for i in rest)
        fresh = [i for i in rest if not is_state(i)]
        if is_decoder_part and place.encoder is not None:
            folder = Companions(path=place.path, told=place.told)
            self.encoder = Maker(place.encoder.inputs, reading, folder, kinds, source=source)
            known |= {i.name for i in rest if i.name.startswith("encoder_hidden")}
        elif not is_decoder_part:
            if "picture" in kinds:
                self.pictures = PictureInputs(fresh, _declared(reading, place, Preprocessing), source)
                known |= set(self.pictures.names)
            if "sound" in kinds:
                self.sounds = SoundInputs(fresh, _declared(reading, place, Sound), source)
                known |= set(self.sounds.names)
        fresh = [i for i in fresh if i.name not in known]
        if "text" in kinds or self.encoder is not None:
            self.texts = TextInputs(fresh, place, _tokenizer(reading, place) if "text" in kinds else None)
            known |= set(self.texts.roles)
        # What no record makes would otherwise be taken for a state of the model.
        self.caches = Caches([i for i in inputs if i.name not in known] if known else [], place)
        known |= set(self.caches.pairs)
        if missing := [i.name for i in inputs if i.name not in known]:
            made = ", ".join(f"'{i.name}'" for i in inputs if i.name in known)
            hint = "the model's encoder (encoder_model.onnx) does, beside it" if is_decoder_part else "use .npz files"
            kind_words = {"text": "texts", "picture": "images", "sound": "sounds"}
            what = " and ".join(kind_words[kind] for kind in sorted(kinds)) or "these records"
            words = ", ".join(f"'{name}'" for name in missing)
            raise BadData(f"{source}: {what} {f'make {made}, but ' if made else ''}cannot make {words}: {hint}")
        self.batch = frozenset(
            i.shape[0] for i in inputs if i.name not in self.caches.pairs and i.shape and isinstance(i.shape[0], str)
        )

    def windows(self, record: Record) -> int:
        """How many samples there are in a record: more than one in a long sound, for a model of short ones."""
        maker = self.sounds or (self.encoder.sounds if self.encoder else None)
        return 1 if maker is None or record.sound is None else maker.windows(record.sound)

    def length(self, number: int) -> int:
        """Tokens of the sample of this `number`; of a decoder's, each length comes without a past and with one."""
        turn = number // 2 if self.caches.pairs else number
        return self.lengths[turn % len(self.lengths)]

    def feed(self, record: Record, number: int) -> Feed:
        """The inputs for a record that is sample `number`: lengths and pasts change from one to the next."""
        feed = dict(record.arrays)
        if self.pictures is not None and record.picture is not None:
            feed |= self.pictures.feed(record.picture, record.where)
        before: list[Feed] = []
        if self.sounds is not None and record.sound is not None:
            first = max(0, record.window - RUNS_BEFORE) if self.caches.pairs else record.window
            *before, last = self.sounds.feeds(record.sound, first, record.window, record.where)
            feed |= last
        if self.encoder is not None:
            return self._decoder_part(record, number, feed)
        if self.texts is not None and self.texts.roles:
            has_past = bool(self.caches.pairs) and number % 2 == 1
            step = self.texts.tokens(record.text or "", self.length(number) + has_past, record.where)
            *before, last = self._steps(step, has_past, record.text or "", None)
            feed |= last
        return feed | self.caches.after(before, record.where, self.batch)

    def _steps(self, step: Step, has_past: bool, text: str, encoded: int | None) -> list[Feed]:
        """One run on all tokens; or one on all but the last, and one on that. Models of a fixed width take more."""
        assert self.texts is not None
        ids, width = step.ids, self.texts.width
        if not has_past or len(ids) < 2:
            cuts = [0, len(ids)]
        elif width is not None:
            cuts = [*range(0, len(ids), width), len(ids)]
        else:
            cuts = [0, len(ids) - 1, len(ids)]
        is_growing = any(len(self.caches.inputs[name].shape or ()) > 3 for name in self.caches.pairs)
        return [
            self.texts.feed(Step(ids[a:b], step.types[a:b], a if is_growing else 0), text, encoded)
            for a, b in itertools.pairwise(cuts)
        ]

    def _decoder_part(self, record: Record, number: int, feed: Feed) -> Feed:
        """A step of a decoder whose encoder is another file: that is run first."""
        assert self.encoder is not None and self.texts is not None
        seen = self.encoder.feed(record, number)
        hidden = encoder_output(self.place, seen, record.where)
        name = next(i.name for i in self.inputs if i.name.startswith("encoder_hidden"))
        fixed = feed | {name: hidden}
        has_past = bool(self.caches.pairs) and number % 2 == 1
        if record.text is not None:
            step = self.texts.tokens(record.text, self.length(number), record.where, special=False)
            step = self.texts.decoder_step(step)
        else:
            step = self._written(fixed, hidden.shape[1], record.where)
        last_token = len(step.ids) if has_past else max(1, len(step.ids) - 1)
        step = Step(step.ids[:last_token][: self.texts.places], step.types)
        *before, last = self._steps(step, has_past, "", hidden.shape[1])
        state = self.caches.after([fixed | each for each in before], record.where, self.batch)
        return fixed | last | state

    def _written(self, fixed: Feed, encoded: int, where: str) -> Step:
        """What the decoder itself says first: the most likely tokens, one after the other."""
        assert self.texts is not None
        step = self.texts.decoder_step(Step((), ()))
        empty = self.caches.empty(self.batch)
        for _ in range(WRITTEN):
            logits = self.place.session.run(fixed | empty | self.texts.feed(step, "", encoded))[0]
            ids = (*step.ids, int(np.argmax(logits[0, -1])))
            step = Step(ids, (0,) * len(ids))
        return step


T = TypeVar("T", Preprocessing, Sound)


def _tokenizer(reading: Reading, place: Companions) -> tokenizer.Tokenizer | None:
    file = reading.tokenizer or place.found("text is read", tokenizer.FILE)
    return None if file is None else open_tokenizer(Path(file))


def _declared(reading: Reading, place: Companions, kind: type[T]) -> T | None:
    """The preprocessing for a kind of data: what the user said, else what lies beside the model."""
    if reading.preprocessing is not None:
        return reading.preprocessing if isinstance(reading.preprocessing, kind) else None
    file = place.found("inputs are made", *companions.PROCESSORS)
    found = None if file is None else load_processor(file)
    return found if isinstance(found, kind) else None
