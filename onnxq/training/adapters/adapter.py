"""What an adapter is: for some products of a model the two thin matrices beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithms.low_rank import Factors
from onnxq.errors import BadData, listed
from onnxq.training.adapters.products import Product

#: Names that an error lists.
MOST = 8


@dataclass(frozen=True)
class Adapter:
    """Low-rank products beside those of one model.

    Attributes:
        factors: by the name of the product's node: `a` [K, rank] and `b` [rank, N] in float32, any factor in them.
    """

    factors: Mapping[str, Factors]

    @property
    def elements(self) -> int:
        """Numbers in all matrices."""
        return sum(a.size + b.size for a, b in self.factors.values())

    @property
    def ranks(self) -> dict[str, int]:
        """By the name of the product's node."""
        return {name: a.shape[1] for name, (a, _) in self.factors.items()}


def require_fit(adapter: Adapter, products: Iterable[Product], source: str) -> None:
    """Refuse an adapter that is not one for these products.

    Args:
        source: what the user calls it.

    Raises:
        BadData: it is for other products, of other sizes, or holds what is no number.
    """
    known = {product.name: product for product in products}
    unknown = [name for name in adapter.factors if name not in known]
    if unknown:
        raise BadData(f"'{source}' is for products that the model does not have: {listed(unknown, MOST)}")
    if not adapter.factors:
        raise BadData(f"'{source}' holds no adapter of any product")
    for name, (a, b) in adapter.factors.items():
        k, n = known[name].k, known[name].n
        if a.ndim != 2 or b.ndim != 2 or (a.shape[0], b.shape[1]) != (k, n) or a.shape[1] != b.shape[0]:
            sizes = " and ".join("×".join(map(str, x.shape)) or "1" for x in (a, b))
            raise BadData(f"'{source}' has matrices of {sizes} for node '{name}', whose weight is {k}×{n}")
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise BadData(f"'{source}' holds numbers for node '{name}' that are infinite or none at all")


def stored_factors(adapter: Adapter, product: Product) -> Factors:
    """The matrices beside `product`, in the type that the model multiplies in.

    Where that has not all their numbers, `a` and `b` are made as large as each other. What it has not even then, it
    has not of their product either.

    Raises:
        BadData: a number is too large for it.
    """
    dtype, factors = product.weight.tensor.dtype.numpy(), adapter.factors[product.name]
    with np.errstate(over="ignore", under="ignore"):
        made = _in_type(factors, dtype)
        if any(_is_beyond(*pair) for pair in zip(factors, made, strict=True)):
            factors = _balanced(factors)
            made = _in_type(factors, dtype)
    for x, stored in zip(factors, made, strict=True):
        if not np.isfinite(stored).all():
            raise BadData(
                f"the adapter of node '{product.name}' has numbers up to {np.abs(x).max():.3g}, too large for "
                f"{dtype.name}, in which the model multiplies: give one with a lower alpha, or a model in float32"
            )
    return made


def _in_type(factors: Factors, dtype: np.dtype) -> Factors:
    return Factors(*(np.ascontiguousarray(x, dtype) for x in factors))


def _is_beyond(x: NDArray, stored: NDArray) -> bool:
    """Whether numbers of `x` became infinite in another type, or nothing."""
    return not np.isfinite(stored).all() or bool(np.any((stored == 0) & (x != 0)))


def _balanced(factors: Factors) -> Factors:
    """The same product, of matrices whose largest numbers are near each other at each rank."""
    a, b = np.abs(factors.a).max(0, initial=0), np.abs(factors.b).max(1, initial=0)
    exponents = np.where((a > 0) & (b > 0), (np.frexp(b)[1] - np.frexp(a)[1]) // 2, 0)  # powers of two round nothing
    return Factors(np.ldexp(factors.a, exponents), np.ldexp(factors.b, -exponents[:, None]))
