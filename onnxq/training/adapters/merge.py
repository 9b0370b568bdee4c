"""Adapters added to the weights they stand beside, which are quantized again in the format they had."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import targets
from onnxq.algorithms.low_rank import Factors
from onnxq.boundary import bounded, warn
from onnxq.checking.labeled import LabelMetric
from onnxq.checking.logits import classes_of
from onnxq.checking.models import Check
from onnxq.checking.score import Score
from onnxq.conversion.convert import rewritten
from onnxq.conversion.files import sign
from onnxq.conversion.plan_codes import Codes, plan_codes
from onnxq.conversion.proof import prove
from onnxq.encoding.lazy import Encoding, GivenTensor
from onnxq.errors import BadData, CheckFailed, UnusedOption
from onnxq.files import limits
from onnxq.formats import QuantizedTensor
from onnxq.job import Environment
from onnxq.model import graph
from onnxq.model.graph import Names
from onnxq.model.load import load_model, said_of_floats
from onnxq.output import write
from onnxq.output.signature import KEY
from onnxq.own_ops import DOMAIN
from onnxq.passes import prepare
from onnxq.passes.opsets.raise_opset import RaiseOpset
from onnxq.passes.restore.read_matmul_bnb4 import bnb4_format
from onnxq.plan import Choice, Method, Plan
from onnxq.quality import sqnr
from onnxq.recipe import Recipe
from onnxq.runtime import known
from onnxq.samples.sampling import Sampling
from onnxq.targets import Target
from onnxq.training.adapters import files
from onnxq.training.adapters.apart import Part
from onnxq.training.adapters.insert import as_nodes
from onnxq.training.adapters.products import Product, file_model, in_file, matrix, products_of, restored
from onnxq.training.adapters.use import open_base


@dataclass(frozen=True)
class Loss:
    """What writing a merged weight in its format cost, in dB: how near it is, and how near what the adapter added."""

    weight: float
    adapter: float


@dataclass(frozen=True)
class Merged:
    """What merging did.

    Attributes:
        losses: by product; None where the written weight is the sum itself.
        unchanged: products to whose weights the adapter adds nothing: they lie in the file as they did.
        formats: by product whose weight is in another format now, which it was and which it is.
        check: of the merged file against the model with the adapter beside it; None: not run, or too large to be.
        score: of those two by a metric, where one was asked for.
    """

    output: Path
    losses: dict[str, Loss | None]
    unchanged: list[str]
    formats: dict[str, tuple[str, str]]
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
    """Write the quantized `model` with `adapter` in its weights, which keep their formats; no product is added.

    What the adapter adds nothing to stays as it lies in the file.

    Args:
        metric: what labelled samples are scored by, before and after; see `checking.metrics`.
        logits: outputs that the user says are scores of classes.
        accuracy_level: of the merged products: 4 lets kernels round activations to int8, 0 and 1 leave them as they
            are.

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
    by_name = {product.name: product for product in products}
    target = target_of(load_model(base))
    loaded = restored(load_model(base), keeps_own=target.has_onnxq_ops)
    logits = logits or tuple(name for name, found in classes_of(loaded).items() if found.kind == "logits")
    if metric is None and data is not None and data.source is not None:
        warn(
            "the samples are for a metric, and none is named: what is merged is checked on made-up inputs", UnusedOption
        )
    scored = None if metric is None else LabelMetric(metric, data or Sampling(), logits=logits, everything=True)
    added = {name: factors for name, factors in found.factors.items() if _added(factors).any()}
    result = file_model(base)
    _merge(result, added, by_name, target, Recipe("w4a16", accuracy_level=accuracy_level))
    sign(result, {"target": target.name, "merged": found.ranks} | said_of_floats(result))
    with write.staging(output) as folder:
        staged, beside = folder / output.name, folder / "beside" / output.name
        progress.start("writing", write.nbytes_to_write(result))
        nbytes = write.save(result, staged, progress.advance)
        losses, formats = _compared(staged, added, by_name)
        separate = file_model(base)
        as_nodes(separate, found, by_name)
        beside.parent.mkdir()  # whatever the output is called
        write.save(separate, beside)
        proof = prove(beside, loaded, staged, environment)
        score = None if scored is None else scored.score(beside, staged, 1)
        guard.publish(staged, output)
    unchanged = [name for name in found.factors if name not in added]
    return Merged(output, losses, unchanged, formats, nbytes, proof, score)


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


def _added(factors: Factors) -> NDArray[np.float32]:
    """What an adapter adds to a weight [K, N]."""
    with np.errstate(over="ignore", invalid="ignore"):  # a weight that is not finite then is refused by name
        return factors.a @ factors.b


def _merge(
    whole: ir.Model, added: Mapping[str, Factors], products: Mapping[str, Product], target: Target, recipe: Recipe
) -> None:
    """Give products of a file's model their new weights; all other nodes and constants stay as they lie there."""
    made, opset = dict[str, tuple[ir.Model, Codes]](), 0
    for name, node in in_file(whole, list(added)).items():
        dtype = products[name].weight.tensor.dtype
        part = restored(Part.of(node).model(whole, dtype), keeps_own=True)
        product = next(product for product in products_of(part) if product.name == name)
        _put(product, added[name], Names(part))
        codes = plan_codes(part, target)
        codes = _across_rows(node, product, target) or _in_half(product, target) or codes
        made[name] = part, codes
        words = [choice.format for choice in codes.plan if choice.format is not None]
        opset = max([opset, *(max(target.opset_for(word), known.OLDEST_OPSET) for word in words)])
    if opset > graph.opset(whole):
        prepare.run([RaiseOpset(opset)], whole)
    names = Names(whole)
    kept = {value for each in graph.graphs(whole) for value in each.initializers.values()}
    for name, node in in_file(whole, list(added)).items():
        part, codes = made[name]
        if codes.plan.choices:
            prepare.run([RaiseOpset(graph.opset(whole))], part)
            part = rewritten(part, codes, target, recipe)
        Part.of(node).replace(whole, part, names)
    if len({id(factors) for factors in added.values()}) < len(added):  # runs of one module, which may have one weight
        _store_once(whole, kept)


def _store_once(whole: ir.Model, kept: Collection[ir.Value]) -> None:
    """Let all that read new constants of the same bytes read one of them."""
    for each in graph.graphs(whole):
        found = dict[Hashable, ir.Value]()
        for name, value in list(each.initializers.items()):
            tensor = value.const_value
            if value in kept or tensor is None:
                continue
            digest = hashlib.blake2b(tensor.tobytes()).digest()
            first = found.setdefault((tensor.dtype, tuple(tensor.shape.numpy()), digest), value)
            if first is not value:
                value.replace_all_uses_with(first)
                del each.initializers[name]


def _across_rows(node: ir.Node, product: Product, target: Target) -> Codes | None:
    """The form that the weight of a MatMulBnb4 has whose blocks reach over the ends of rows; None: it is another."""
    if not graph.is_op(node, "MatMulBnb4", domain=graph.MICROSOFT) or product.is_quantized:
        return None
    word, block = bnb4_format(node), graph.attribute_int(node, "block_size", 0)
    choice = Choice(product.name, "MatMul", Method.PACKED, word, block, product.k * product.n)
    return _alone(choice, target)


def _in_half(product: Product, target: Target) -> Codes | None:
    """The form of a weight that is stored in 16 bits; None: it is not."""
    if product.half is None:
        return None
    op_type, word = product.weight.node.op_type, product.half.name.lower()
    return _alone(Choice(product.name, op_type, Method.STORED, word, None, product.k * product.n), target)


def _alone(choice: Choice, target: Target) -> Codes:
    """A plan of one product."""
    return Codes(Plan("codes", target.name, {choice.node: choice}), {})


def _put(product: Product, factors: Factors, names: Names) -> None:
    """Give a product of a restored model its new weight."""
    weight, tensor = product.weight, product.weight.tensor
    dtype, alpha = tensor.dtype, product.alpha
    if not alpha:
        raise BadData(f"node '{product.name}' multiplies its weight by 0: keep the adapter beside it, by lora convert")

    def floats() -> NDArray:
        w = matrix(weight, _exact(dtype)) + _added(factors) / np.float32(alpha)
        return np.ascontiguousarray(w.T if weight.role.contraction == 1 else w)

    if isinstance(tensor, GivenTensor) and tensor.form is not None:
        format, how = tensor.form

        def given() -> QuantizedTensor:
            w = ir.tensor(floats(), name=weight.value.name)
            return Encoding(w, format, how, half_scales=tensor.half_scales).result()

        new: ir.TensorProtocol = GivenTensor(
            given, weight.shape, dtype, half_scales=tensor.half_scales, form=tensor.form
        )
    else:

        def stored() -> ir.TensorProtocol:
            with np.errstate(over="ignore", invalid="ignore"):
                w = floats().astype(dtype.numpy())
            if not np.isfinite(w[np.isfinite(tensor.numpy())]).all():
                raise BadData(f"node '{product.name}' and its adapter make weights too large for {dtype.name.lower()}")
            return ir.tensor(w)

        new = ir.LazyTensor(stored, dtype=dtype, shape=ir.Shape(weight.shape))
    owner = weight.value.graph
    assert isinstance(owner, ir.Graph)
    value = graph.add_constant(owner, names.fresh(f"{weight.value.name}_merged"), new)
    value.meta.update(weight.value.meta)
    weight.node.replace_input_with(weight.role.index, value)


def _exact(dtype: ir.DataType) -> type[np.floating]:
    """In which weights of this type lose nothing."""
    return np.float64 if dtype is ir.DataType.DOUBLE else np.float32


def _compared(
    staged: Path, added: Mapping[str, Factors], before: Mapping[str, Product]
) -> tuple[dict[str, Loss | None], dict[str, tuple[str, str]]]:
    """Of each merged weight of the written file what was lost, and where its format is another which it was and is."""
    after = {product.name: product for product in products_of(restored(load_model(staged)))}
    losses, formats = dict[str, Loss | None](), dict[str, tuple[str, str]]()
    for name, factors in added.items():
        if name not in after:
            raise CheckFailed(f"node '{name}' of the saved file does not multiply by a weight: it was not kept")
        words = before[name].stored_form, after[name].stored_form
        if words[0] != words[1]:
            formats[name] = words
        exact, delta = _exact(before[name].weight.tensor.dtype), _added(factors)
        w, got = (matrix(each[name].weight, exact) * exact(each[name].alpha) for each in (before, after))
        known = np.isfinite(w)
        w, got, delta = w[known], got[known], delta[known]
        is_lost = not np.array_equal(w + delta, got)
        losses[name] = Loss(sqnr(w + delta, got), sqnr(delta, got - w)) if is_lost else None
    return losses, formats
