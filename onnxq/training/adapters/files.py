"""Adapters on disk: which kind a name is of, how it is read for a model, and how it is written.

*.onnx_adapter    onnxruntime's, for the model that `base` writes
*.onnx            the model with the adapter in it, as nodes
a folder          PEFT's
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onnxq.algorithms.low_rank import Factors
from onnxq.conversion.files import sign
from onnxq.errors import BadData, BadOutput
from onnxq.files import staging
from onnxq.files.guard import Guard
from onnxq.model.load import said_of_floats
from onnxq.output import write
from onnxq.progress import Progress
from onnxq.runtime.own_files.adapter_file import SUFFIX, read_adapter_file, write_adapter_file
from onnxq.training.adapters import peft
from onnxq.training.adapters.adapter import Adapter, require_fit, stored_factors
from onnxq.training.adapters.insert import A, B, as_nodes
from onnxq.training.adapters.products import Product, file_model


def read_adapter(path: Path, products: Sequence[Product], guard: Guard) -> peft.Read:
    """The adapter at `path`, for these products of a model.

    Raises:
        BadData: it is none, is damaged, or does not fit.
    """
    if path.is_dir():
        guard.reads(*(file for file in peft.files_of(path) if file.exists()))
        found = peft.read_peft(path, products)
    elif path.suffix == SUFFIX:
        guard.reads(path)
        found = peft.Read(_of_runtime(path), {})
    else:
        raise BadData(f"'{path}' is no adapter: give a file that ends in {SUFFIX}, or a folder of PEFT")
    require_fit(found.adapter, products, str(path))
    factors = found.adapter.factors
    ordered = {product.name: factors[product.name] for product in products if product.name in factors}
    return peft.Read(Adapter(ordered), found.modules)


def promise(output: Path, guard: Guard) -> None:
    """Tell the guard what `write_adapter` will write.

    Raises:
        BadOutput: it cannot be written, or is none of the kinds.
    """
    if output.suffix in (SUFFIX, ".onnx"):
        guard.writes(output)
    elif output.is_dir():
        for file in peft.files_of(output):
            guard.writes_unnamed(file)
    elif output.suffix:
        raise BadOutput(f"'{output}' is none of {SUFFIX}, .onnx and a folder, by which the kind of adapter is told")
    elif output.exists():
        raise BadOutput(f"'{output}' is a file, and an adapter of PEFT is a folder; choose another name with -o")
    else:
        guard.writes(output)


def write_adapter(
    output: Path, adapter: Adapter, base: Path, products: Sequence[Product], guard: Guard, progress: Progress
) -> int:
    """Write `adapter` as what the name of `output` says; bytes written.

    Args:
        base: the file of the model that it is for.

    Raises:
        BadModel: a product of it has no place for one.
        BadData: a number is too large for the model's type.
        BadOutput: it cannot be written.
    """
    if output.suffix == ".onnx":
        return _write_model(output, adapter, base, products, guard, progress)
    if output.suffix == SUFFIX:
        progress.start("writing")
        by_name = {product.name: product for product in products}
        arrays = {
            f"{name}{word}": x
            for name in adapter.factors
            for word, x in zip((A, B), stored_factors(adapter, by_name[name]), strict=True)
        }
        guard.require_unread(output)
        with staging.whole(output, replace=guard.force) as staged:
            write_adapter_file(staged, arrays)
        return output.stat().st_size
    progress.start("writing")
    peft.write_peft(output, adapter)
    return sum(file.stat().st_size for file in peft.files_of(output))


def _write_model(
    output: Path, adapter: Adapter, base: Path, products: Sequence[Product], guard: Guard, progress: Progress
) -> int:
    model = file_model(base)
    as_nodes(model, adapter, {product.name: product for product in products})
    sign(model, {"adapted": adapter.ranks} | said_of_floats(model))
    with write.staging(output) as folder:
        staged = folder / output.name
        progress.start("writing", write.nbytes_to_write(model))
        nbytes = write.save(model, staged, progress.advance)
        guard.publish(staged, output)
    return nbytes


def _of_runtime(path: Path) -> Adapter:
    halves: dict[str, dict[str, np.ndarray]] = {}
    for name, x in read_adapter_file(path).items():
        word = next((word for word in (A, B) if name.endswith(word)), None)
        if word is None or x.dtype.kind not in "fV":
            raise BadData(f"'{path}' holds '{name}', which is no low-rank matrix of a product ('NODE{A}', 'NODE{B}')")
        halves.setdefault(name.removesuffix(word), {})[word] = x
    lone = next((name for name, both in halves.items() if len(both) < 2), None)
    if lone is not None:
        raise BadData(f"'{path}' has only one matrix of product '{lone}'")
    return Adapter({name: Factors(*(both[w].astype(np.float32) for w in (A, B))) for name, both in halves.items()})
