"""What is done with adapters that are there: other files of them, a base that takes them by runs, a merged model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from onnxq.boundary import bounded
from onnxq.conversion.files import read, sign
from onnxq.errors import BadModel
from onnxq.job import Environment
from onnxq.model.load import is_quantized, said_of_floats
from onnxq.output import write
from onnxq.runtime.session import Session
from onnxq.training.adapters import files
from onnxq.training.adapters.insert import as_inputs
from onnxq.training.adapters.products import Product, chosen, file_model, products_of, restored

#: Where adapters stand unless it is said: beside every product.
EVERYWHERE: Mapping[str, int] = {"*": 1}


@dataclass(frozen=True)
class Written:
    """A file of an adapter, or a base for some.

    Attributes:
        ranks: by product; of a base 0.
        proposed: by product, of what module it is and how that was found, where not by name.
    """

    output: Path
    ranks: dict[str, int]
    nbytes: int
    proposed: dict[str, tuple[str, str]] = field(default_factory=dict)


@bounded
def convert_adapter(
    model: str | Path, adapter: str | Path, output: str | Path, *, environment: Environment | None = None
) -> Written:
    """Write `adapter` for `model` as another kind of file, by the name of `output`: `.onnx_adapter`, a folder for PEFT,
    or `.onnx`, the model with the adapter in it.

    Raises:
        BadModel: the model cannot be read, or a product has no place for an adapter.
        BadData: the adapter is damaged, or for another model.
        BadOutput: the output cannot be written.
    """
    environment, output = environment or Environment(), Path(output)
    base, _, products = open_base(model, environment)
    found = files.read_adapter(Path(adapter), products, environment.guard)
    files.promise(output, environment.guard)
    nbytes = files.write_adapter(output, found.adapter, base, products, environment.guard, environment.progress)
    proposed = {name: said for name, said in found.modules.items() if said[1]}
    return Written(output, found.adapter.ranks, nbytes, proposed)


@bounded
def make_base(
    model: str | Path,
    output: str | Path,
    *,
    lora: Mapping[str, int] = EVERYWHERE,
    environment: Environment | None = None,
) -> Written:
    """Write `model` with two optional inputs for every product that `lora` names, by which runs take an adapter.

    Args:
        lora: patterns of node names; their numbers do not matter unless they are 0, the inputs take any rank.

    Raises:
        BadModel: the model cannot be read, or has such inputs already.
        BadRecipe: a pattern matches no product.
        BadOutput: the output cannot be written.
        CheckFailed: the written model does not load.
    """
    environment, output = environment or Environment(), Path(output)
    write.require_onnx(output)
    guard, progress = environment.guard, environment.progress
    base, _, products = open_base(model, environment)
    guard.writes(output)
    wanted = chosen(products, lora)
    made = file_model(base)
    as_inputs(made, {product.name: product for product in products if product.name in wanted})
    sign(made, {"takes_adapters": sorted(wanted)} | said_of_floats(made))
    with write.staging(output) as folder:
        staged = folder / output.name
        progress.start("writing", write.nbytes_to_write(made))
        nbytes = write.save(made, staged, progress.advance)
        Session(staged)
        guard.publish(staged, output)
    return Written(output, dict.fromkeys(wanted, 0), nbytes)


def open_base(model: str | Path, environment: Environment) -> tuple[Path, ir.Model, list[Product]]:
    """The path of a model, whose files stay as they are, the model with its weights restored, and its products.

    Raises:
        BadModel: it cannot be read, or has no products.
    """
    path = Path(model)
    model_there = read(path, environment)[0]
    quantized = is_quantized(model_there)
    loaded = restored(model_there)
    products = list(products_of(loaded))
    if not products:
        what = f"'{path}' has no products of activations and a matrix"
        if quantized is None:
            raise BadModel(f"{what}: no adapter is for it")
        raise BadModel(
            f"{what} that it does not round ({quantized}): adapters are for models of which weights alone are "
            "quantized, as -s w4a16 does it"
        )
    return path, loaded, products
