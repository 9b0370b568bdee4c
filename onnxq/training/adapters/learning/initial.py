"""Adapters that make up for what the codes left of the weights, before anything is trained.

With the Gram matrices of what the products read, A · B is the product of that rank which leaves the least error at the
products' outputs; without, the one nearest to the error of the weight.

Source: Zhang et al., QERA (ICLR 2025); Li et al., LoftQ (ICLR 2024), whose alternation would choose the codes anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from onnxq.algorithms.low_rank import lqer, qera
from onnxq.errors import BadModel
from onnxq.model.load import load_model
from onnxq.passes.prepare import prepare
from onnxq.runtime.session import Feed
from onnxq.training.adapters.adapter import Adapter
from onnxq.training.adapters.learning.module import AdaptedModule
from onnxq.training.adapters.products import Product, matrix, products_of

#: Bytes of Gram matrices that are summed in one pass over the samples.
GRAM_BYTES = 1 << 28


def reconstructed(adapted: AdaptedModule, in_float: Path, samples: Callable[[], Iterable[Feed]]) -> Adapter:
    """The closed form for every adapter of `adapted`, which is left as it is.

    Args:
        in_float: the model that the quantized one was made of.
        samples: what the Gram matrices are of; each call gives them anew.

    Raises:
        BadModel: it has no such products.
    """
    model = load_model(in_float)
    prepare(model, widen=True)
    weights = {product.name: product for product in products_of(model)}
    factors = {}
    for group in _groups(adapted.products):
        grams = _grams(adapted, {product.name: product.k for product in group}, samples)
        for product in group:
            source = weights.get(product.name)
            if source is None or (source.k, source.n) != (product.k, product.n):
                raise BadModel(f"'{in_float}' has no product '{product.name}' of {product.k}×{product.n} weights")
            # What stands beside a node is not multiplied by the node's factor.
            w = matrix(source.weight) * np.float32(source.alpha)
            q = adapted.weight(product.name) * np.float32(product.alpha)
            rank = adapted.adapters[product.name].a.shape[1]
            gram = grams[product.name]
            factors[product.name] = qera.factors(w - q, rank, gram) if gram.any() else lqer.factors(w - q, rank)
    return Adapter(factors)


def _groups(products: Iterable[Product]) -> Iterator[list[Product]]:
    """Products whose Gram matrices fit together."""
    group: list[Product] = []
    nbytes = 0
    for product in products:
        own = 4 * product.k * product.k
        if group and nbytes + own > GRAM_BYTES:
            yield group
            group, nbytes = [], 0
        group.append(product)
        nbytes += own
    if group:
        yield group


def _grams(
    adapted: AdaptedModule, sizes: Mapping[str, int], samples: Callable[[], Iterable[Feed]]
) -> dict[str, NDArray[np.float32]]:
    """Σ xᵀ·x of what each product reads, by name."""
    sums = {name: torch.zeros(k, k) for name, k in sizes.items()}

    def watch(name: str, x: torch.Tensor) -> None:
        if name in sums:
            rows = x.detach().float().reshape(-1, x.shape[-1])
            sums[name] += (rows.T @ rows).cpu()

    adapted.watch = watch
    try:
        with torch.no_grad():
            for feed in samples():
                adapted(feed)
    finally:
        adapted.watch = None
    return {name: total.numpy() for name, total in sums.items()}
