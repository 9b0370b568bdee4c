"""What a search may spend, and so what it makes the best of: `size=25%`, `bits=3.5`, `latency=0.6`, `drop=0.01`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from onnxq.boundary import require_types
from onnxq.errors import BadRecipe

#: What can be bounded, in words.
QUANTITIES = {
    "size": "of the float model's files, 25% or 0.25",
    "bits": "of a weight in the mean, all that the file holds for them counted",
    "latency": "of the float model's time, 60% or 0.6",
    "drop": "of the score of --metric or --evaluate; without one, the share of flipped decisions",
}
_FORM = re.compile(r"\s*([a-z]+)\s*=\s*([0-9]{0,9}(?:\.[0-9]{0,9})?)\s*(%?)\s*")


@dataclass(frozen=True)
class Budget:
    """A bound. What is made the best of under it: the size under `drop`, the accuracy under the others.

    Attributes:
        quantity: a word of `QUANTITIES`.
        amount: of `bits` so many; of the others a share of the float model's.

    Raises:
        BadRecipe: there is no such quantity, or no model can keep such a bound.
    """

    quantity: str
    amount: float

    def __post_init__(self) -> None:
        require_types(Budget, vars(self))
        if self.quantity not in QUANTITIES:
            raise BadRecipe(f"--budget: nothing is called '{self.quantity}'; bound one of {', '.join(QUANTITIES)}")
        most = {"size": 1.0, "bits": 32.0, "latency": 10.0, "drop": 1e6}[self.quantity]
        least = 0.0 if self.quantity == "drop" else math.ulp(0.0)
        if not least <= self.amount <= most:
            what = f"it is {QUANTITIES[self.quantity]}, at most {most:g}"
            raise BadRecipe(f"--budget: {self.quantity} cannot be {self.amount:g}: {what}")

    @property
    def bounds_accuracy(self) -> bool:
        """Whether the smallest file is wanted, rather than the most accurate."""
        return self.quantity == "drop"

    def __str__(self) -> str:
        return f"{self.quantity}={self.amount:g}"


def parse_budget(text: str | Budget) -> Budget:
    """The budget that `text` says.

    Raises:
        BadRecipe: it says none.
    """
    if isinstance(text, Budget):
        return text
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None or not found[2].strip("."):
        raise BadRecipe(f"--budget: '{text}' is no bound; write size=25%, bits=3.5, latency=0.6 or drop=0.01")
    if found[1] == "bits" and found[3]:
        raise BadRecipe("--budget: bits are no share of anything; write bits=3.5")
    return Budget(found[1], float(found[2]) / (100 if found[3] else 1))
