"""What was trained must not vanish: floats of a checkpoint that went nowhere are a problem where the model has what
stands around them. Exporters leave out zeros and ones, merge equal modules, and fold norms away.

    1. Its own module has a tensor that was used: the bias of a weight, an adapter of a matrix.
    2. It is of a BatchNorm, frozen or not, and the module around that has something that was used.
    3. It is a vector or a number, its module has no matrix that went nowhere too, and it is in a block with a number
       (`layers.3.`) of which something was used, or the module around that (its own, if there are others in that) has
       used tensors, itself or in a module that has no others in it.

Let through are numbers that the model has, buffers, copies of used tensors, zeros and ones, whose loss changes nothing,
and what `_TRAINING` and `_ACTIVATIONS` name. Matrices of whole modules (heads, poolers, other towers, products whose
results decoders get as their past) are of what the model does not have, which it shows itself; so are single numbers
beside such a part: CLIP's logit_scale beside one tower.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxq.checkpoints.checkpoint import outline
from onnxq.checkpoints.matching.folded.batchnorms import EXPORT, words_of
from onnxq.checkpoints.matching.names import MOST_LAST
from onnxq.checkpoints.matching.parameters import is_of_buffers
from onnxq.checkpoints.stored import key, real
from onnxq.checkpoints.tensors import UNKNOWN, Outline
from onnxq.errors import BadModel, listed

#: Names that a sentence lists.
MOST = 4
#: What only training reads, by how its name ends.
_TRAINING = re.compile(
    r"(^|[._])("
    r"mask(ed)?_(token|spec_embed|emb|embed|embedding|embeddings)"  # in the place of what is hidden: DINOv2, wav2vec2
    r"|masked_bias"  # GPT-2's −10000
    r"|embed_avg|cluster_size|inited"  # running means of codebooks
    r"|(loss|loss_fn|loss_function|criterion)\.[\w.]+"  # classes' weights, uncertainties of tasks
    r")$"
)
#: Scales of rounded activations, of which a model of floats has none: single numbers.
_ACTIVATIONS = re.compile(r"(^|[._])(input|output|act|q|k|v|kv|prob)_((global_)?scale|zero_point)$")
#: Words of tensors that PEFT and loralib add to a layer.
_ADAPTER = re.compile(r"(^|\.)(lora|hada|lokr|ia3|oft|boft|vera|hra|fourierft)_[^.]*(\.|$)")
#: Parameters of a BatchNorm.
_STATISTICS = ("running_mean", "running_var")


def vanished(tensors: Mapping[str, Any], unused: Collection[str], told: Collection[str]) -> list[str]:
    """Sentences about tensors that went nowhere, and should not.

    Args:
        unused: all tensors that went nowhere.
        told: those of which something else is said, or whose numbers the model has.
    """
    around = _Around(tensors, unused)
    copies = _Copies(tensors, unused)
    found = [name for name in unused if name not in told and not _TRAINING.search(name) and around.miss(name)]
    unreadable = [name for name in found if name in around.unreadable]
    found = [name for name in found if name not in around.unreadable]
    found = [name for name in found if _tells_something(name, tensors[name]) and not copies.have(name)]
    adapters = [name for name in found if _ADAPTER.search(name)]
    norms = list(dict.fromkeys(_module(name) for name in found if _module(name) in around.norms))
    rest = [name for name in found if name not in adapters and _module(name) not in norms]
    untold = [f"{tensors[name].told}; if the model has nothing of it: --without '{name}'" for name in unreadable]
    return untold + list(_sentences(adapters, norms, rest))


def _sentences(adapters: Sequence[str], norms: Sequence[str], rest: Sequence[str]) -> Iterator[str]:
    if adapters:
        one = len(adapters) == 1
        yield (
            f"{listed(adapters, MOST)} {'is' if one else 'are'} of an adapter that is not merged: save the model after "
            "PEFT's merge_and_unload, or import the weights without the adapter and add that with `onnxq lora merge`"
        )
    if norms:
        noun, go, them = words_of(norms)
        yield (
            f"the {noun} {listed(norms, MOST)} {go} nowhere, and nothing tells where the model has {them}; "
            f"{EXPORT.format(them)}, or say that it has none (--without '{norms[0]}.*')"
        )
    if rest:
        go = "goes" if len(rest) == 1 else "go"
        yield (
            f"{listed(rest, MOST)} {go} nowhere, though the model has what stands around: exporters compute other "
            "constants of some, and leave out zeros, ones and what equals another; export it with trained weights, or "
            f"say that it has none of these (--without '{rest[0]}')"
        )


class _Around:
    """What the names of all tensors tell of each.

    Attributes:
        unreadable: those that went nowhere and cannot be read, for their type.
        norms: modules that are a BatchNorm.
    """

    def __init__(self, tensors: Mapping[str, Any], unused: Collection[str]) -> None:
        outlines = {name: outline(tensors, name) for name in unused}
        lost = {name: found for name, found in outlines.items() if _is_floats(found) or _is_unreadable(found)}
        self._shapes = {name: found.shape for name, found in lost.items()}
        self.unreadable = {name for name, found in lost.items() if _is_unreadable(found)}
        gone, modules = {*unused}, {_module(name) for name in tensors}
        self._with_modules = {_module(each) for module in modules for each in [module, *_around(module)] if each}
        self._used = {_module(name) for name in tensors if name not in gone}
        self._used_below = {each for module in self._used for each in [module, *_around(module)]}
        leaves = {_module(module) for module in self._used if module and module not in self._with_modules}
        self._used_near = self._used | leaves
        self._matrices = {_module(name) for name in lost if not _is_vector(self._shapes[name])}
        below = {each for module in self._matrices for each in [module, *_around(module)]} - self._used_below
        self._without_parts = {_module(module) for module in below if module}
        self.norms = {module for module in modules if all(key(module, each) in tensors for each in _STATISTICS)}

    def miss(self, name: str) -> bool:
        """Whether a tensor that went nowhere should not have done that, by rules 1 to 3."""
        if name not in self._shapes:
            return False
        module, is_vector = _module(name), _is_vector(self._shapes[name])
        is_container = module in self._with_modules or not module
        is_single = np.prod(self._shapes[name]) == 1
        if is_single and ((is_container and module in self._without_parts) or _ACTIVATIONS.search(name)):
            return False
        owner = name[: found.start()] if (found := _ADAPTER.search(name)) else module
        if module in self._used or (found and owner in self._used_below):
            return True
        if name in self.unreadable:
            return False
        if module in self.norms and _module(module) in self._used_below:
            return True
        holder = module if is_container else _module(module)
        is_numbered = any(each in self._used_below for each in [module, *_around(module)] if _is_numbered(each))
        return is_vector and module not in self._matrices and (is_numbered or holder in self._used_near)


class _Copies:
    """The used tensors, by shape and numbers."""

    def __init__(self, tensors: Mapping[str, Any], unused: Collection[str]) -> None:
        self._tensors, self._hashes = tensors, dict[tuple[int, ...], set[bytes]]()
        self._by_shape: dict[tuple[int, ...], list[str]] = {}
        gone = {*unused}
        for name in tensors:
            if name not in gone and _is_floats(found := outline(tensors, name)):
                self._by_shape.setdefault(found.shape, []).append(name)

    def have(self, name: str) -> bool:
        shape = self._tensors[name].shape
        if shape not in self._hashes:
            self._hashes[shape] = {_hash(self._tensors[each]) for each in self._by_shape.get(shape, ())}
        return _hash(self._tensors[name]) in self._hashes[shape]


def _hash(x: NDArray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(x).tobytes() + str(x.dtype).encode()).digest()


def _tells_something(name: str, x: NDArray) -> bool:
    """Whether its loss changes something."""
    if x.dtype.kind == "c":  # but for rotary frequencies, each on the circle
        return not np.allclose(np.abs(x), 1)
    try:
        x = real(name, x).astype(np.float32)
    except BadModel:  # masks with infinity
        return False
    is_plain = not x.any() or (_is_vector(x.shape) and bool((x == 1).all()))
    return not is_plain and not is_of_buffers(x)


def _is_floats(found: Outline) -> bool:
    """Complex ones too."""
    return found.kind in "fVc" and bool(found.size)


def _is_unreadable(found: Outline) -> bool:
    return found.kind == UNKNOWN and bool(found.size)


def _is_vector(shape: Sequence[int]) -> bool:
    return sum(size != 1 for size in shape) <= 1


def _is_numbered(module: str) -> bool:
    """Whether its last word is a number; but the first one is that of a part, as in torch's Sequential."""
    before, _, last = module.rpartition(".")
    return bool(before) and last.isdigit()


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _around(module: str) -> Iterator[str]:
    """The modules in which a module is, from the outermost one on."""
    words = module.split(".", MOST_LAST)[:-1] if module else []
    return (".".join(words[:i]) for i in range(len(words) + 1))
