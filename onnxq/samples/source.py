"""Calibration data: samples as dicts of arrays, read one at a time from files, folders or a Python function."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import BadData, BadRecipe
from onnxq.files import limits
from onnxq.quality.gaps import Gaps
from onnxq.runtime.own_functions import failing, import_function, require_call, shown
from onnxq.runtime.session import Feed, Input
from onnxq.samples import arrays, files
from onnxq.samples.files import Reads, Some
from onnxq.samples.fit import Label, Read, array_of, fit
from onnxq.samples.gaps.words import in_words
from onnxq.samples.prefetch import Pulled, prefetch
from onnxq.samples.reading import How, Reading, reading_of
from onnxq.samples.texts.companions import Companions

#: What stands behind the last sample.
_END = object()
#: Why nothing that is said of files has an effect on arrays.
_AS_THEY_ARE = "the samples are arrays, which are taken as they are"


@dataclass(frozen=True)
class Data:
    """Samples that can be gone through any number of times, each a dict of one array for each input.

    Attributes:
        source: where they come from, as the user named it.
        reads: opens the samples anew; each is read (an image decoded …) only when its function is called.
        fingerprint: of the files they come from, where there are files; without, the samples themselves are hashed.
        part_of, part_count: the data that this was split from, if it was, and how many samples of it these are.
        gaps: what was met of them that is not finite; of a part, in the whole.
        spread: opens some of them, evenly spread, also of those that they were chosen from; None: the first will do.
        note: what a user should know of which samples these are.
    """

    source: str
    reads: Reads
    fingerprint: Callable[[], str] | None = None
    part_of: Data | None = None
    part_count: int = 0
    gaps: Gaps = field(default_factory=Gaps, repr=False, compare=False)
    spread: Some | None = None
    note: str = ""

    def __iter__(self) -> Iterator[Feed]:
        return (read() for read in self.reads())

    def after(self, skipped: int) -> Iterator[Feed]:
        """The samples without the first `skipped`, which are not read."""
        return (read() for read in itertools.islice(self.reads(), skipped, None))

    @property
    def _seen(self) -> tuple[int, str]:
        """Count and hash, found once. Samples may do anything meanwhile, in any thread: no lock is held for that."""
        if "_found" not in vars(self):
            vars(self)["_found"] = self._gone_through()
        found: tuple[int, str] = vars(self)["_found"]
        return found

    def _gone_through(self) -> tuple[int, str]:
        """Count and hash. Without a fingerprint, the samples are gone through once for them."""
        if self.fingerprint is not None:
            return sum(1 for _ in self.reads()), self.fingerprint()
        digest, count = hashlib.sha256(), 0
        with contextlib.closing(prefetch(self)) as samples:
            for sample in samples:
                count += 1
                add_to_hash(digest, sample)
        return count, digest.hexdigest()

    @property
    def count(self) -> int:
        """How many samples there are. The first time, files are hashed, or else the samples gone through."""
        return self._seen[0] if self.part_of is None else self.part_count

    def hash(self) -> str:
        """A hash of every name, shape, type and byte, in order, or of the files; of a part, the hash of the whole."""
        return self._seen[1] if self.part_of is None else self.part_of.hash()

    def require_numbers(self) -> None:
        """
        Raises:
            BadData: no sample holds a finite number, or anything but floats: all that were read, and all others then.
        """
        for _ in self if self.gaps.is_all else ():
            if not self.gaps.is_all:
                return
        if self.gaps.is_all:
            found = in_words(self.gaps, self.count)
            raise BadData(f"{self.source}: no sample holds a finite number: {found}; give samples that do")

    def split(self, held_back: int) -> tuple[Data, Data]:
        """(all but the last `held_back` samples of every stride, those samples): evenly spread over the data."""
        if self.count < 2 or held_back < 1:
            return self, self
        held_back = min(held_back, max(1, self.count // 4))
        chosen = {int(i) for i in np.linspace(0, self.count - 1, held_back + 2)[1:-1]}
        rest = self._part(self.source, lambda i: i not in chosen, self.count - len(chosen))
        return rest, self._part(f"{self.source} (held back)", lambda i: i in chosen, len(chosen))

    def shard(self, number: int, count: int) -> Data:
        """Every `count`-th sample, from sample `number` (1 … `count`) on."""
        size = len(range(number - 1, self.count, count))
        return self._part(f"{self.source} (shard {number} of {count})", lambda i: i % count == number - 1, size)

    def _part(self, source: str, is_in: Callable[[int], bool], count: int) -> Data:
        def reads() -> Iterator[Read]:
            given = 0
            for i, read in enumerate(self.reads()):
                if is_in(i):
                    given += 1
                    yield read
            if given < count:
                raise BadData(
                    f"{source} gave {given} samples, and {count} the time before: it must always give the same"
                )

        return Data(source, reads, None, self, count, self.gaps)

    def limited(self, limit: int | None, seed: int | None = None, *, why: str = "--limit takes more") -> Data:
        """The first `limit` samples, of tables and lines of JSON evenly spread ones; all, if None.

        Args:
            seed: with one, so many are drawn at random, in their order.
            why: they are not more, as is noted.
        """
        if limit is None:
            return self
        if limit < 1 or (seed or 0) < 0:
            raise BadRecipe(f"limit is {limit} and seed {seed}: of samples take one at least, with a seed of 0 or more")
        limit = min(limit, sys.maxsize - 1)
        if self.fingerprint is not None and sum(1 for _ in itertools.islice(self.reads(), limit + 1)) <= limit:
            return self
        if seed is None and self.spread is not None:
            reads, among = self.spread(limit)
            note = f"{limit} of the {among} samples of {self.source} are used, evenly spread over them: {why}"
            return replace(self._limited(reads, f"{limit} spread over {among}"), spread=self.spread, note=note)
        if seed is None:
            return self._limited(lambda: itertools.islice(self.reads(), limit), f"the first {limit}")
        drawn = np.random.default_rng(seed).permutation(self.count)[:limit]
        chosen = {int(i) for i in drawn}
        found = lambda: (read for i, read in enumerate(self.reads()) if i in chosen)  # noqa: E731
        return self._limited(found, f"{limit} by seed {seed}")

    def _limited(self, reads: Reads, what: str) -> Data:
        whole = self.fingerprint
        if whole is None:
            return Data(self.source, reads, gaps=self.gaps)

        def fingerprint() -> str:
            return hashlib.sha256(f"{whole()} {what}".encode()).hexdigest()

        return Data(self.source, reads, fingerprint, gaps=self.gaps)


def inputs_of(model: ir.Model) -> tuple[Input, ...]:
    """The inputs that a caller of `model` must give."""
    found = []
    for value in model.graph.inputs:
        if value.const_value is None:
            is_plain = value.dtype not in (None, ir.DataType.UNDEFINED, ir.DataType.STRING)
            dtype = value.dtype.numpy() if value.dtype and is_plain else np.dtype(np.object_)
            dims = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
            found.append(Input(value.name or "", dtype, dims))
    return tuple(found)


DataSource = str | Path | Iterable[Mapping[str, NDArray]] | Callable[[], Iterable[Mapping[str, NDArray]]]


def open_data(
    source: DataSource,
    inputs: tuple[Input, ...],
    how: How = None,
    *,
    model: ir.Model | None = None,
    path: str | Path | None = None,
) -> Data:
    """Samples for a model with these `inputs`.

    Args:
        source: a `.npz` file (arrays named like the inputs), a `.npy` file (one input), images, sounds, texts, lines of
            JSON, tables (`samples/`), a folder of files of one of these kinds, `module:function` (a generator of
            dicts); or, from Python, an iterable of dicts, of which no more are asked for than are used, or such a
            function. Arrays of an input's rank are cut along axis 0; with one rank more, the first axis counts samples.
        how: how images and sounds become arrays, and texts tokens.
        model, path: in float, and its file, for what only they know: the caches of a decoder, which it fills by
            running, the vocabulary, and what lies beside the file.

    Raises:
        BadData: nothing there, or names, shapes or types that do not fit; one sentence with both shapes.
    """
    reading, place = reading_of(how), Companions(model, None if path is None else Path(path))
    if not isinstance(source, (str, Path)):
        reading.tell_unused(_AS_THEY_ARE)
        return _from_python(source, inputs)
    where = Path(source)
    if where.is_dir():
        return _from_files(where, _files_in(where), inputs, reading, place)
    if where.suffix.lower() in arrays.SUFFIXES | files.SUFFIXES:
        if not where.exists():
            raise BadData(f"the calibration data '{where}': no such file")
        limits.require_file(where, BadData, "the calibration data ")
        return _from_files(where, [where], inputs, reading, place)
    if ":" in str(source):
        reading.tell_unused(_AS_THEY_ARE)
        return _from_python(_import(str(source)), inputs, str(source))
    kinds = ".npz, .npy, .txt, .jsonl, .csv, .parquet, .arrow, images or sounds"
    raise BadData(f"--data '{source}' is neither a file of a known kind ({kinds}), nor a folder, nor module:function")


def _files_in(folder: Path) -> list[Path]:
    """The files of a folder, which are of one kind."""
    found = files.files_in(folder, arrays.SUFFIXES | files.SUFFIXES)
    # Beside images, sounds and arrays, texts and tables are notes and labels.
    main = [file for file in found if files.kind_of(file) in (None, "images", "sounds")]
    found = main or found
    kinds = {files.kind_of(file) or "arrays" for file in found}
    if not found:
        raise BadData(f"the folder '{folder}' holds no arrays (.npz, .npy), images, sounds, texts or tables")
    if len(kinds) > 1:
        raise BadData(f"the folder '{folder}' holds both {' and '.join(sorted(kinds))}; give one kind")
    return found


def _from_files(
    source: Path, found: Sequence[Path], inputs: tuple[Input, ...], reading: Reading, place: Companions
) -> Data:
    said = f"'{source}'"
    if files.kind_of(found[0]) is None:
        reading.tell_unused(_AS_THEY_ARE)
        reads = lambda: arrays.read_files(found, inputs)  # noqa: E731
        return _checked(said, reads, inputs, lambda: _hash_files(found, str(inputs)))
    samples = files.samples_of(found, said, inputs, reading, place)
    how = f"{reading} {place.used()} {inputs}"
    return _checked(said, samples.all, inputs, lambda: _hash_files(found, how), samples.some)


def _from_python(
    source: Iterable[Mapping[str, NDArray]] | Callable[[], Iterable[Mapping[str, NDArray]]],
    inputs: tuple[Input, ...],
    name: str = "the given samples",
) -> Data:
    """The samples of a function, called anew for each pass over the data, or of anything that can be gone through."""
    if not callable(source) and (not isinstance(source, Iterable) or _is_raw(source)):
        raise BadData(
            f"{name} is of type {type(source).__name__}, neither a list of dicts nor a function that gives them"
        )
    if callable(source):
        require_call(source, name)
        samples: Iterable[object] = ()
    else:
        with failing(name):
            samples = list(source) if isinstance(source, (list, tuple)) else _pulled(source)

    def samples_of() -> Iterator[Read]:
        with failing(name):
            found = source() if callable(source) else samples
            is_many = isinstance(found, Iterable)  # which asks the class
        if not is_many:
            raise BadData(f"{name} gave {shown(found)}, neither a list of dicts nor a generator of them")
        with failing(name):
            rest = iter(found)
        while True:
            # Only what is the caller's is at work there: what is done with a sample fails elsewhere.
            with failing(name):
                sample = next(rest, _END)
                if callable(source):
                    sample = _kept(sample)
                elif isinstance(sample, Mapping):
                    sample = _arrays(sample)
            if sample is _END:
                return
            if not isinstance(sample, dict):
                raise BadData(f"{name} yields {shown(sample)}, not a dict of arrays")
            yield functools.partial(dict, sample)

    return _checked(name, samples_of, inputs)


def _is_raw(source: object) -> bool:
    """Whether something is bytes, of which a list would be numbers."""
    return isinstance(source, (bytes, bytearray))


def lasting(source: Any) -> Any:
    """The same samples, which can be opened again: those of an iterator, or of what gives one, may come once only."""
    is_known = isinstance(source, (str, Path, Mapping, Sized)) or callable(source)
    return source if is_known or not isinstance(source, Iterable) else _pulled(source)


def _pulled(source: Iterable[Any]) -> Pulled[Any]:
    """Copies of the samples, once."""
    return source if isinstance(source, Pulled) else Pulled(map(_kept, source))


def _kept(sample: object) -> object:
    """A sample whose arrays are copies: generators fill one buffer again and again, and are read ahead of the model."""
    return {key: x.copy() for key, x in _arrays(sample).items()} if isinstance(sample, Mapping) else sample


def _arrays(sample: Mapping[Any, Any]) -> dict[str, NDArray]:
    return {str(key): array_of(x, f"'{key}' of a sample") for key, x in sample.items()}


def _import(source: str) -> Callable[[], Iterable[Mapping[str, NDArray]]]:
    found = import_function(source, f"--data '{source}'")
    require_call(found, f"--data '{source}'")
    return found


def _checked(
    source: str,
    reads: Reads,
    inputs: tuple[Input, ...],
    fingerprint: Callable[[], str] | None = None,
    some: Some | None = None,
) -> Data:
    """The samples, each checked against the inputs and with float types converted."""

    gaps = Gaps()

    def checked(reads: Reads) -> Iterator[Read]:
        number = -1
        for number, read in enumerate(reads()):
            yield functools.partial(_read_checked, read, inputs, source, number, gaps)
        if number < 0:
            raise BadData(f"{source} holds no samples")

    def spread(limit: int) -> tuple[Reads, str]:
        assert some is not None
        found, among = some(limit)
        return functools.partial(checked, found), among

    found = functools.partial(checked, reads)
    return Data(source, found, fingerprint, gaps=gaps, spread=None if some is None else spread)


def _read_checked(read: Read, inputs: tuple[Input, ...], source: str, number: int, gaps: Gaps) -> Feed:
    sample = fit(read(), inputs, f"{source}, sample {number}")
    gaps.look(number, {i.name: sample[i.name] for i in inputs if not isinstance(i, Label)})
    return sample


def add_to_hash(digest: hashlib._Hash, sample: Feed) -> None:
    """Every name, shape, type and byte of a sample."""
    for name in sorted(sample):
        x = sample[name]
        digest.update(f"{name} {x.dtype} {x.shape} ".encode())
        digest.update(_bytes(x))


def hash_of(sample: Feed) -> bytes:
    """The same of samples that are alike to the bit."""
    digest = hashlib.sha256()
    add_to_hash(digest, sample)
    return digest.digest()


def _bytes(x: NDArray) -> bytes | memoryview:
    """What an array holds, of strings their text."""
    return repr(x.tolist()).encode() if x.dtype.hasobject else np.ascontiguousarray(x).reshape(-1).view(np.uint8).data


def _hash_files(files: Sequence[Path], how: str) -> str:
    """A hash of the files' bytes, in order, and of how they are read."""
    digest = hashlib.sha256(how.encode())
    with ThreadPoolExecutor() as threads:
        for part in threads.map(_hash_file, files):
            digest.update(part)
    return digest.hexdigest()


def _hash_file(file: Path) -> bytes:
    try:
        with limits.open_file(file, BadData) as opened:
            return hashlib.file_digest(opened, "sha256").digest()
    except OSError as error:
        raise BadData(f"'{file}' cannot be read: {error.strerror}") from None
