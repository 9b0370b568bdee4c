"""`--fail-below 'sqnr=30'`: the least that a comparison may find."""

from __future__ import annotations

import math
from collections.abc import Mapping

from onnxq.checking.layers.result import ByLayer, LayerError
from onnxq.errors import BadRecipe, CheckFailed

#: Figures that may have a floor: of a comparison layer by layer, and of one of outputs.
BY_LAYER, OF_OUTPUTS = ("sqnr", "local_sqnr", "cosine"), ("sqnr",)


def parse_floors(text: str) -> dict[str, float] | None:
    """`sqnr=30,cosine=0.99` as numbers by word; None if it is nothing of that kind."""
    found = {}
    for part in text.split(","):
        word, equals, number = part.strip().partition("=")
        try:
            found[word.strip()] = float(number)
        except ValueError:
            return None
        if not equals or word.strip() not in BY_LAYER or found[word.strip()] != found[word.strip()]:
            return None
    return found


def require_floors(found: ByLayer, floors: Mapping[str, float]) -> None:
    """
    Raises:
        CheckFailed: a layer is below one of them, or nothing was compared; the sentence names the first such layer.
    """
    if not found.layers:
        raise CheckFailed(f"--fail-below was not checked: no layer of '{found.b}' could be compared")
    for word, least in floors.items():
        low = [layer for layer in found.layers if (figure := _figure(layer, word)) is not None and not figure >= least]
        if low:
            first, more = low[0], f" (and {len(low) - 1} more)" if len(low) > 1 else ""
            reached = f"{_figure(first, word):.4g}"
            raise CheckFailed(
                f"'{first.b}' ({first.op_b}) of '{found.b}' has {word}={reached}, less than {least:g}{more}: keep the "
                "layers that add error in float, or lower --fail-below"
            )


def require_output_floor(sqnr: float, floors: Mapping[str, float]) -> None:
    """
    Raises:
        BadRecipe: a floor is for layers.
        CheckFailed: the outputs are below the floor, or were not compared.
    """
    others = [word for word in floors if word not in OF_OUTPUTS]
    if others:
        raise BadRecipe(f"--fail-below {others[0]}=… is for layers: give --by-layer too")
    if math.isnan(sqnr):
        raise CheckFailed(f"nothing could be compared, so nobody knows of the {floors['sqnr']:g} dB of --fail-below")
    if not sqnr >= floors["sqnr"]:
        raise CheckFailed(f"the outputs reach {sqnr:.1f} dB, less than the {floors['sqnr']:g} dB of --fail-below")


def _figure(layer: LayerError, word: str) -> float | None:
    found: float | None = getattr(layer, word)
    return found
