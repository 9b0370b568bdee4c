"""Adapters added to the weights they stand beside, which are quantized again in the format they had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import targets
from onnxq.algorithms.low_rank import Factors
from onnxq.boundary import bounded
from onnxq.checking.labeled import LabelMetric
from onnxq.checking.logits import classes_of
from onnxq.checking.models import Check
from onnxq.checking.score import Score
from onnxq.conversion.convert import rewritten
from onnxq.conversion.files import sign
from onnxq.conversion.plan_codes import plan_codes
from onnxq.conversion.proof import prove
from onnxq.encoding.lazy import Encoding, GivenTensor
from onnxq.errors import BadData
from onnxq.files import limits
from onnxq.formats import QuantizedTensor
from onnxq.job import Environment
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.load import load_model
from onnxq.output import write
from onnxq.output.signature import KEY
from onnxq.own_ops import DOMAIN
from onnxq.quality import sqnr
from onnxq.recipe import Recipe
from onnxq.samples.sampling import Sampling
from onnxq.targets import Target
from onnxq.training.adapters import files
from onnxq.training.adapters.insert import as_nodes
from onnxq.training.adapters.products import Product, file_model, matrix, products_of, restored
from onnxq.training.adapters.use import open_base


@dataclass(frozen=True)
class Loss:
    """What quantizing a merged weight again cost, in dB: how near the weight is, and what the adapter added to it."""

    weight: float
    adapter: float


@dataclass(frozen=True)
class Merged:
    """What merging did.

    Attributes:
        losses: by product; None where the weight is in floats.
        unchanged: products to whose weights the adapter adds nothing.
        check: of the merged file against the model with the adapter beside it; None: not run, or too large to be.
        score: of those two by a metric, where one was asked for.
    """

    output: Path
    losses: dict[str, Loss | None]
    unchanged: list[str]
    nbytes: int
    check: Check | None
    score: Score | None


@bounded
def merge_adapter(
    model: str | Path,
    adapter: str | Path,
    output: str | Path,
    *,
    metric: str | None = None,
    logits: tuple[str, ...] = (),
    data: Sampling | None = None,
    accuracy_level: int = Recipe.accuracy_level,
    environment: Environment | None = None,
) -> Merged:
    """Write the quantized `model` with `adapter` in its weights, which keep their formats; no node is added.

    Args:
        metric: what labelled samples are scored by, before and after; see `checking.metrics`.
        logits: outputs that the user says are scores of classes.
        accuracy_level: of products: 4 lets kernels round activations to int8, 0 and 1 leave them as they are.

    Raises:
        BadModel: the model cannot be read.
        BadData: the adapter is damaged, for another model, or too large for the type of a weight.
        BadOutput: the output cannot be written.
        CheckFailed: the written model does not load or run.
    """
    environment, output = environment or Environment(), Path(output)
    guard, progress = environment.guard, environment.progress
    write.require_onnx(output)
    base, _, products = open_base(model, environment)
    found = files.read_adapter(Path(adapter), products, guard).adapter
    guard.writes(output)
    target = target_of(load_model(base))
    loaded = restored(load_model(base), keeps_own=target.has_onnxq_ops)
    logits = logits or tuple(name for name, found in classes_of(loaded).items() if found.kind == "logits")
    scored = None if metric is None else LabelMetric(metric, data or Sampling(), logits=logits, everything=True)
    made = _merged(loaded, found.factors)
    codes = plan_codes(loaded, target)
    result = rewritten(loaded, codes, target, Recipe("w4a16", accuracy_level=accuracy_level))
    sign(result, {"target": target.name, "merged": found.ranks})
    with write.staging(output) as folder:
        staged, beside = folder / output.name, folder / "beside" / output.name
        progress.start("writing", write.nbytes_to_write(result))
        nbytes = write.save(result, staged, progress.advance)
        losses = {name: measure() for name, measure in made.items()}
        separate = file_model(base)
        as_nodes(separate, found, {product.name: product for product in products})
        beside.parent.mkdir()  # whatever the output is called
        write.save(separate, beside)
        proof = prove(beside, loaded, staged, environment)
        score = None if scored is None else scored.score(beside, staged, 1)
        guard.publish(staged, output)
    unchanged = [name for name in found.factors if name not in losses]
    return Merged(output, losses, unchanged, nbytes, proof, score)


def target_of(model: ir.Model) -> Target:
    """Where a quantized model runs: what it says itself, else what its operators say."""
    try:
        said = limits.parse_json(model.metadata_props.get(KEY, "{}"))
        if isinstance(said, dict) and said.get("target") in targets.names():
            return targets.get(said["target"])
    except ValueError:
        pass
    domains = {node.domain for node in graph.nodes(model)}
    return targets.get("onnxq" if DOMAIN in domains else "ort-cpu" if graph.MICROSOFT in domains else "onnx")


def _merged(model: ir.Model, factors: Mapping[str, Factors]) -> dict[str, Callable[[], Loss | None]]:
    """Give the products of a restored model their new weights; by name, what tells the loss of it.

    Where nothing is added codes stay what they are: encoding again what they stand for may give others.
    """
    names, made = Names(model), {}
    for product in list(products_of(model)):
        if product.name in factors and _added(factors[product.name]).any():
            made[product.name] = _put(product, factors[product.name], names)
    return made


def _added(factors: Factors) -> NDArray[np.float32]:
    """What an adapter adds to a weight [K, N]."""
    with np.errstate(over="ignore", invalid="ignore"):  # a weight that is not finite then is refused by name
        return factors.a @ factors.b


def _put(product: Product, factors: Factors, names: Names) -> Callable[[], Loss | None]:
    weight, tensor = product.weight, product.weight.tensor
    is_turned = weight.role.contraction == 1

    def added() -> NDArray[np.float32]:
        delta = _added(factors)
        return np.ascontiguousarray(delta.T if is_turned else delta)

    def floats() -> NDArray[np.float32]:
        w = matrix(weight)
        return np.ascontiguousarray(w.T if is_turned else w) + added()

    measure: Callable[[], Loss | None] = _nothing
    if isinstance(tensor, GivenTensor) and tensor.form is not None:
        format, how = tensor.form

        def given() -> QuantizedTensor:
            w = ir.tensor(floats(), name=weight.value.name)
            return Encoding(w, format, how, half_scales=tensor.half_scales).result()

        new: ir.TensorProtocol = GivenTensor(
            given, weight.shape, tensor.dtype, half_scales=tensor.half_scales, form=tensor.form
        )

        def loss() -> Loss:
            wanted, got = floats(), given().dequantize()
            delta = added()
            return Loss(sqnr(wanted, got), sqnr(delta, delta + got - wanted))

        measure = loss
    else:
        dtype = tensor.dtype

        def stored() -> ir.TensorProtocol:
            with np.errstate(over="ignore"):
                w = floats().astype(dtype.numpy())
            if not np.isfinite(w).all():
                raise BadData(f"node '{product.name}' and its adapter make weights too large for {dtype.name.lower()}")
            return ir.tensor(w)

        new = ir.LazyTensor(stored, dtype=dtype, shape=ir.Shape(weight.shape))
    owner = weight.value.graph
    assert isinstance(owner, ir.Graph)
    value = graph.add_constant(owner, names.fresh(f"{weight.value.name}_merged"), new)
    value.meta.update(weight.value.meta)
    weight.node.replace_input_with(weight.role.index, value)
    return measure


def _nothing() -> None:
    """Of floats nothing is lost."""
