"""Models that read what they wrote: which output is which input of the next step."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import NDArray

from onnxq.made_up.dims import Dims, is_free
from onnxq.made_up.names import key
from onnxq.made_up.roles import Part, Role
from onnxq.runtime.session import Feed


class Loop:
    """The outputs that are inputs of the next step.

    Found by their names, which agree but for words like `past` and `present`, and by their shapes; states of other
    names by their order.
    """

    def __init__(self, parts: Sequence[Part], outputs: Sequence[str], found: Sequence[NDArray]) -> None:
        """`found`: the outputs of one run."""
        self.pairs: dict[str, str] = {}
        arrays = dict(zip(outputs, found, strict=True))
        carried = [part for part in parts if part.input.dtype.kind == "f" and part.input.shape]
        by_key: dict[tuple[str, ...], str] = {}
        for name in outputs:
            by_key.setdefault(key(name), name)
        for part in carried:
            name = by_key.get(key(part.name), "")
            if name and key(name) and part.role is Role.CACHE and _fits(part, arrays[name]):
                self.pairs[part.name] = name
        left = [name for name in outputs if name not in self.pairs.values()]
        for part in carried:
            if part.role is Role.CACHE and part.name not in self.pairs:
                match = next((name for name in left if _fits(part, arrays[name])), None)
                if match is not None:
                    self.pairs[part.name] = match
                    left.remove(match)

    def fed_back(self, feed: Feed, outputs: Sequence[str], found: Sequence[NDArray]) -> Feed:
        """The inputs of the next step that are known already.

        What a branch does not compute comes out empty or of another batch; its input then stays as it was.
        """
        arrays, kept = dict(zip(outputs, found, strict=True)), {}
        for name, output in self.pairs.items():
            old, new = feed[name], arrays[output]
            is_known = new.ndim == old.ndim and new.shape[0] == old.shape[0] and new.size > 0
            kept[name] = new.astype(old.dtype) if is_known else old
        return kept


def sizes_of(dims: Dims, parts: Sequence[Part], kept: Feed) -> dict[str, int]:
    """The sizes of the symbols that arrays which are there already decide."""
    found: dict[str, int] = {}
    for part in parts:
        for axis, dim in enumerate(part.input.shape or ()):
            symbols = dims.symbols_at(part.input, axis)
            if part.name in kept and is_free(dim) and len(symbols) == 1:
                found[symbols[0]] = kept[part.name].shape[axis]
    return found


def _fits(part: Part, x: NDArray) -> bool:
    shape = part.input.shape or ()
    fixed = [(dim, n) for dim, n in zip(shape, x.shape, strict=False) if not is_free(dim)]
    return x.dtype.kind == part.input.dtype.kind and x.ndim == len(shape) and all(dim == n for dim, n in fixed)
