"""Adapters as PEFT keeps them: a folder with adapter_config.json and adapter_model.safetensors.

    base_model.model.MODULE.lora_A.weight   [rank, K]
    base_model.model.MODULE.lora_B.weight   [N, rank], times alpha / rank (with rsLoRA alpha / √rank)
    base_model.model.MODULE.base_layer.weight   of heads tied to a table, or that might be: the base's own [N, K]

Modules are the products of a model as `import-weights` matches them: by name, else by the end of their names or by
what they do. A module that runs several times, as ALBERT's layers do, is several products.

Source: huggingface's peft, `save_and_load.py` for the names, `tuners/lora/layer.py` for the factor, and
`utils/other.py` (get_pattern_key) for patterns.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms.low_rank import Factors
from onnxq.checkpoints.encode_arrays import write_arrays
from onnxq.checkpoints.matching import structure
from onnxq.checkpoints.matching.names import dotted, names_of
from onnxq.checkpoints.matching.put import LIKE, LIKE_COARSE
from onnxq.checkpoints.tensors import Safetensors
from onnxq.encoding.lazy import GivenTensor
from onnxq.errors import BadData, BadRecipe, first_line, listed
from onnxq.files import limits, schemas, staging
from onnxq.output import write
from onnxq.quality import sqnr
from onnxq.recipe import Rule
from onnxq.training.adapters.adapter import MOST, Adapter
from onnxq.training.adapters.products import Product, matrix

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
#: What torch's exporter adds to the name of a module that runs once more.
_NUMBER = re.compile(r"_\d+$")
_KEY = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
_BASE = re.compile(r"(?:base_model\.model\.)?(.+)\.base_layer\.weight")
#: dB between floats that differ by no more than being stored as bfloat16 or float16.
_SAME = 40.0
#: What makes of A and B something else than a product that is added.
_OTHERS = (
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "layer_replication",
    "target_parameters",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "modules_to_save",
    "trainable_token_indices",
)
#: The init_lora_weights with which PEFT leaves the weights of the base as they are when it loads an adapter.
_PLAIN = ("gaussian", "eva", "orthogonal", "mica")


class ConfigFile(msgspec.Struct):
    """What adapter_config.json says that decides what its tensors mean."""

    peft_type: str
    r: schemas.Count = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    alpha_pattern: dict[str, float] | None = None
    bias: str | None = "none"
    init_lora_weights: bool | str | None = True


@dataclass(frozen=True)
class Read:
    """An adapter that was read, and which module each product's was, with the way it was found if not by its name."""

    adapter: Adapter
    modules: Mapping[str, tuple[str, str]]


def files_of(folder: Path) -> tuple[Path, Path]:
    """The two files of an adapter."""
    return folder / CONFIG, folder / TENSORS


def read_peft(folder: Path, products: Sequence[Product]) -> Read:
    """The adapter in `folder`, for the products of a model.

    Raises:
        BadData: it is none, is damaged, of another kind than LoRA, or has modules that the model does not have.
    """
    config = _config(folder)
    pairs, bases = _pairs(folder)
    found, factors, modules = _matched(folder, pairs, products), dict[str, Factors](), dict[str, tuple[str, str]]()
    for module, (a, b) in pairs.items():
        rank = a.shape[0] if a.ndim == 2 else 0
        if rank < 1 or b.ndim != 2 or b.shape[1] != rank:
            raise BadData(f"'{folder / TENSORS}' has no matrices of one rank for module '{module}'")
        factor = _alpha(config, module) / (math.sqrt(rank) if config.use_rslora else rank)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite then is refused with the adapter
            both = Factors(np.ascontiguousarray(a.T), np.ascontiguousarray(b.T * np.float32(factor)))
        names, why = found[module]
        for name in names:
            if name in factors:
                raise BadData(f"'{folder / TENSORS}' has two modules for node '{name}', '{module}' is one of them")
            factors[name], modules[name] = both, (module, why)
    by_name = {product.name: product for product in products}
    for module, base in bases.items():
        for name in found[module][0]:
            _require_base(folder / TENSORS, module, base, by_name[name])
    return Read(Adapter(factors), modules)


def write_peft(folder: Path, adapter: Adapter) -> None:
    """Write an adapter into `folder`, which is made; files of it that are there are replaced.

    The factor is in B: alpha is the rank. The base is not named: PEFT would ask a hub for it.

    Raises:
        BadOutput: it cannot be written.
    """
    is_new = not folder.exists()
    write.make_folder(folder)
    modules = {name: dotted(name) for name in adapter.factors}
    ranks = {modules[name]: rank for name, rank in adapter.ranks.items()}
    usual = max(set(ranks.values()), key=list(ranks.values()).count)
    others = {re.escape(module): rank for module, rank in ranks.items() if rank != usual}
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": None,
        "r": usual,
        "lora_alpha": usual,
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": list(ranks),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_dropout": 0.0,
        "task_type": None,
    }

    def arrays() -> list[tuple[str, partial[NDArray]]]:
        made = []
        for name, (a, b) in adapter.factors.items():
            for word, x in (("A", a), ("B", b)):
                made.append((f"{_PREFIX}{modules[name]}.lora_{word}.weight", partial(np.ascontiguousarray, x.T)))
        return made

    try:
        with staging.staging(folder / TENSORS) as place:
            with staging.as_told_of(place, folder):
                write_arrays(place / TENSORS, iter(arrays()), replace=True)
            (place / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            staging.move_set([(place / name, folder / name) for name in (TENSORS, CONFIG)])
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # somebody put something there
                folder.rmdir()
        raise


def _config(folder: Path) -> ConfigFile:
    path = folder / CONFIG
    if not os.path.lexists(path):
        raise BadData(f"'{folder}' has no {CONFIG}: it is no adapter of PEFT")
    try:
        table = limits.parse_json(limits.read_text(path, "the configuration ", error=BadData))
        config = schemas.checked(table, ConfigFile)
    except ValueError as error:
        raise BadData(f"the configuration '{path}' cannot be read: {first_line(error)}") from None
    if config.peft_type != "LORA":
        raise BadData(f"'{path}' is of an adapter of kind {config.peft_type}; onnxq reads LORA")
    others = [word for word in _OTHERS if table.get(word)]
    if others or config.bias not in (None, "none"):
        what = others[0] if others else f"bias '{config.bias}'"
        raise BadData(f"'{path}' has {what}, which adds more than a low-rank product: onnxq cannot read it")
    began = config.init_lora_weights
    if isinstance(began, str) and began.lower() not in _PLAIN:
        raise BadData(
            f"'{path}' has init_lora_weights '{began}', which changes the weights of the base too: merge it in PEFT, "
            "or save it as plain LoRA, by save_pretrained with path_initial_model_for_weight_conversion"
        )
    if not math.isfinite(config.lora_alpha):
        raise BadData(f"'{path}' has a lora_alpha of {config.lora_alpha}")
    return config


def _pairs(folder: Path) -> tuple[dict[str, tuple[NDArray, NDArray]], dict[str, NDArray]]:
    """A and B of each module, and of those of which the base's weight lies beside them, that."""
    path = folder / TENSORS
    if not os.path.lexists(path) and os.path.lexists(folder / "adapter_model.bin"):
        raise BadData(f"'{folder}' holds a pickle, which may run programs when it is read: save it as {TENSORS}")
    limits.require_file(path, BadData)
    tensors, halves, bases = Safetensors(path), dict[str, dict[str, NDArray]](), dict[str, NDArray]()
    for name in tensors:
        if (base := _BASE.fullmatch(name)) is not None:
            bases[base[1]] = np.asarray(tensors[name])
            continue
        found = _KEY.fullmatch(name)
        if found is None:
            raise BadData(f"'{path}' holds '{name}', which is no low-rank matrix beside a product")
        both = halves.setdefault(found[1], {})
        if found[2] in both:
            raise BadData(f"'{path}' holds matrix {found[2]} of module '{found[1]}' twice, '{name}' is one of them")
        both[found[2]] = np.asarray(tensors[name])
    for module, both in halves.items():
        if set(both) != {"A", "B"} or any(x.dtype.kind not in "fV" for x in both.values()):
            raise BadData(f"'{path}' has not both matrices of module '{module}' in floating-point numbers")
    if not halves:
        raise BadData(f"'{path}' holds no tensors")
    alone = next((module for module in bases if module not in halves), None)
    if alone is not None:
        raise BadData(f"'{path}' holds the weights of module '{alone}', and no low-rank matrices beside them")
    with np.errstate(over="ignore"):
        pairs = {
            module: (both["A"].astype(np.float32), both["B"].astype(np.float32)) for module, both in halves.items()
        }
    return pairs, bases


def _require_base(path: Path, module: str, base: NDArray, product: Product) -> None:
    """
    Raises:
        BadData: the weight of a module's base is not that of the product, as far as its codes tell.
    """
    sizes, w = (product.n, product.k), product.weight.tensor
    is_whole = base.dtype.kind in "fV" and base.shape in (sizes, sizes[::-1])
    near = -math.inf
    if is_whole:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite then is not the weight
            own = matrix(product.weight).T * np.float32(product.alpha)
            near = sqnr((base if base.shape == sizes else base.T).astype(np.float32), own)
    bits = w.form[0].bits if isinstance(w, GivenTensor) and w.form is not None else 0
    least = (LIKE if bits >= 4 else LIKE_COARSE) if product.has_codes else _SAME
    if not near >= least:
        why = f"{near:.1f} dB" if is_whole else f"{'×'.join(map(str, base.shape))} of {base.dtype}"
        raise BadData(
            f"'{path}' holds the weights of module '{module}' too, which are not those of node '{product.name}' "
            f"({why}): the adapter is for other weights, which import-weights puts into the float model"
        )


def _matched(
    folder: Path, pairs: Mapping[str, tuple[NDArray, NDArray]], products: Sequence[Product]
) -> dict[str, tuple[list[str], str]]:
    """By module the names of its products, more than one where it runs several times, and how they were found where
    not by name."""
    own = {dotted(product.name): product for product in reversed(products)}
    others = [product for product in products if dotted(product.name) not in pairs]
    found, called = dict[str, tuple[list[Product], str]](), dict[str, list[Product]]()
    for product in others:
        for name in dict.fromkeys(names_of(product.weight)):
            called.setdefault(name, []).append(product)
    for module in pairs:
        first, runs = own.get(module), called.get(module, [])
        if first is not None:
            runs = [first, *(product for product in others if _is_run_of(product, first))]
        if runs:
            found[module] = runs, ""
    taken = {product.name for runs, _ in found.values() for product in runs}
    left = [module for module in pairs if module not in found]
    free = _by_module([product for product in products if product.name not in taken] if left else [])
    here = [structure.Side(i, (module,), _sizes(pairs[module])) for i, module in enumerate(left)]
    names = [dict.fromkeys(name for each in runs for name in names_of(each.weight)) for runs in free]
    there = [structure.Side(i, tuple(names[i]), (runs[0].n, runs[0].k)) for i, runs in enumerate(free)]
    for proposal in structure.proposals(here, there, {}) if left else ():
        if not proposal.is_weak and proposal.why != structure.BY_SHAPE:  # no numbers tell whether it is right
            found[left[proposal.layer]] = free[proposal.weight], proposal.why
    missing = [module for module in pairs if module not in found]
    if missing:
        known = ", ".join(dotted(product.name) for product in products[:MOST])
        raise BadData(
            f"'{folder}' adapts {listed(missing, MOST)}, which the model does not have; its products are "
            f"{known}{', …' if len(products) > MOST else ''}"
        )
    return {module: ([product.name for product in runs], why) for module, (runs, why) in found.items()}


def _by_module(products: Sequence[Product]) -> list[list[Product]]:
    """Products that are runs of one module together."""
    found = list[list[Product]]()
    for product in products:
        runs = next((runs for runs in found if _is_alike(product, runs[0])), None)
        if runs is None:
            found.append(runs := [])
        runs.append(product)
    return found


def _is_alike(product: Product, first: Product) -> bool:
    """Whether both read one weight, and their names differ in no more than a number."""
    name, known = (_NUMBER.sub("", dotted(each.name)) for each in (product, first))
    return _is_run_of(product, first) or (name == known and product.weight.value is first.weight.value)


def _is_run_of(product: Product, first: Product) -> bool:
    """Whether `product` is what `first` is at another time, by its name and weight.

    An exporter may give each its own copy of the weight, and calibration makes different codes of copies.
    """
    name, known = dotted(product.name), dotted(first.name)
    if name == known or _NUMBER.sub("", name) != known or (product.k, product.n) != (first.k, first.n):
        return False
    is_one = product.weight.value is first.weight.value
    return is_one or sqnr(matrix(first.weight), matrix(product.weight)) >= LIKE_COARSE


def _sizes(pair: tuple[NDArray, NDArray]) -> tuple[int, int]:
    """(outputs, inputs)."""
    a, b = pair
    return (b.shape[0], a.shape[1]) if a.ndim == b.ndim == 2 else (0, 0)


def _alpha(config: ConfigFile, module: str) -> float:
    """Of the first pattern that matches the end of the module's name."""
    for pattern, alpha in (config.alpha_pattern or {}).items():
        try:
            if Rule("keep", nodes=rf"re:^(.*\.)?({pattern})$").matches(module, ""):
                return alpha
        except BadRecipe:
            raise BadData(f"{CONFIG}: alpha_pattern '{pattern}' is not a regular expression (of RE2)") from None
    return config.lora_alpha
