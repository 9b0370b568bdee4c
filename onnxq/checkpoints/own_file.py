"""What our own files of weights say of themselves: of each array in which format, shape and granularity it is.

In `.safetensors` the table is the metadata `onnxq`, in `.npz` the array `onnxq.json`. A weight NAME is what
`layouts.compact` makes of it: NAME.codes, NAME.scales …; of an array that was kept the table says null, or `product`
where it is a matrix [outputs, inputs] of a product, whatever way the model has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from onnxq import formats, layouts
from onnxq.errors import BadData, BadModel, BadRecipe, first_line
from onnxq.files import limits, schemas
from onnxq.formats import E8M0, Granularity, QuantizedTensor

TABLE, KEY = "onnxq.json", "onnxq"
#: In `.npz`, whose types are numpy's: of which other type an array of unsigned integers is, in safetensors' words.
TYPES = "onnxq.types.json"
#: What the table says of an array that was kept and is a matrix of a product.
PRODUCT = "product"
#: Key of the metadata of a file that has another layout than ours: which of its tensors of floats are matrices
#: [outputs, inputs] of products. Others lie as they do in the graph.
PRODUCTS = "onnxq.products"
#: Key of the same: what constants are called in the graph whose names are others in such a file.
NAMES = "onnxq.names"


def table_of(tensors: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is said of each array, by name; None for files of others.

    Args:
        tensors: of the file, by name.
        metadata: texts of the file, by key.
    """
    try:
        text = metadata[KEY] if KEY in metadata else bytes(tensors[TABLE]).decode()
        found = limits.parse_json(text)
    except (KeyError, ValueError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def products_of(metadata: Mapping[str, Any]) -> list[str]:
    """What `PRODUCTS` says, as text or in GGUF's list, as far as it is names."""
    said = _said(metadata, PRODUCTS)
    return [each for each in said if isinstance(each, str)] if isinstance(said, list) else []


def names_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """What `NAMES` says: names of the graph by those of the file."""
    said = _said(metadata, NAMES)
    pairs = said.items() if isinstance(said, dict) else ()
    return {key: name for key, name in pairs if isinstance(name, str)}


def _said(metadata: Mapping[str, Any], key: str) -> Any:
    try:
        return limits.parse_json(said) if isinstance(said := metadata.get(key), str) else said
    except ValueError:
        return None


def parts_of(name: str, entry: Any) -> list[str]:
    """The tensors of a weight.

    Args:
        entry: what the table says of it.

    Raises:
        BadData: it says no such thing.
    """
    return [f"{name}.{part}" for part in _checked(name, entry).parts]


def weight_of(name: str, entry: Any, tensors: Mapping[str, NDArray]) -> QuantizedTensor:
    """The weight, with the codes and scales that it had.

    Args:
        entry: what the table says of it.
        tensors: of the file.

    Raises:
        BadData: a part is missing, or does not fit the others.
    """
    said = _checked(name, entry)
    try:
        format, how = formats.get(said.format, said.levels), Granularity(said.axis, said.block)
        parts = {part: tensors[f"{name}.{part}"] for part in said.parts}
        if format.scale_type == E8M0 and "scales" in parts:
            parts["scales"] = parts["scales"].view(E8M0)
        return layouts.from_compact(format, how, tuple(said.shape), parts)
    except KeyError as error:
        raise BadData(f"weight '{name}' cannot be decoded: the file has no {first_line(error)}") from None
    except (TypeError, ValueError, BadRecipe, BadModel) as error:
        raise BadData(f"weight '{name}' cannot be decoded: {first_line(error)}") from None


def _checked(name: str, entry: Any) -> schemas.EncodedArray:
    try:
        return schemas.checked(entry, schemas.EncodedArray)
    except (TypeError, ValueError) as error:
        raise BadData(f"weight '{name}' cannot be decoded: {first_line(error)}") from None
