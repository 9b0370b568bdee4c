"""What a written model says of how it was made, in its metadata: enough to make it again, byte by byte.

`onnxq` holds who made it of what, as JSON; `onnxq.plan` the plan that was carried out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import onnx_ir as ir

from onnxq.errors import BadRecipe
from onnxq.files import limits, schemas
from onnxq.model.load import load_model
from onnxq.plan import Plan, parse_plan
from onnxq.recipe import Recipe
from onnxq.version import __version__

KEY, PLAN_KEY = "onnxq", "onnxq.plan"


@dataclass(frozen=True)
class Signature:
    """How a model was made.

    Attributes:
        version, onnxruntime: of those two, when it was made.
        model: the hash of the prepared float model.
        data: the hash of the samples; empty without.
        recipe: with the scheme and the calibration method that were chosen for `auto`.
        asked: the scheme that the user named.
        plan: what was carried out.
        is_given: whether the user gave the plan.
        is_checked: whether the file was run, without which a plan is not tuned.
        profile: the hash of the times that decided; empty where none did.
        machine: on which those were measured, in words.
    """

    version: str
    onnxruntime: str
    model: str
    data: str
    recipe: Recipe
    asked: str
    plan: Plan
    is_given: bool = False
    is_checked: bool = True
    profile: str = ""
    machine: str = ""

    @property
    def plan_hash(self) -> str:
        return hashlib.blake2b(self.plan.to_json().encode(), digest_size=16).hexdigest()

    @property
    def asked_recipe(self) -> Recipe:
        """What was asked for, which leads to `recipe` again."""
        return replace(self.recipe, scheme=self.asked)

    def to_dict(self) -> dict[str, object]:
        """Everything but the plan, of which only the hash, for JSON."""
        table = asdict(self) | {"target": self.plan.target, "plan": self.plan_hash}
        if self.recipe.min_sqnr is not None:
            table["recipe"]["min_sqnr"] = float(self.recipe.min_sqnr)  # which a caller may have given as an integer
        return table

    def differences(self, now: Signature) -> Iterator[str]:
        """What is not as it was when this was made, a sentence each."""
        if now.model != self.model:
            yield f"the model is another one (hash {now.model[:12]}; it was {self.model[:12]})"
        if now.data != self.data:
            words = [data[:12] if data else "none" for data in (now.data, self.data)]
            yield f"the data are others (hash {words[0]}; it was {words[1]})"
        if now.version != self.version:
            yield f"onnxq is of another version ({now.version}; it was {self.version})"
        if now.onnxruntime != self.onnxruntime:
            yield f"onnxruntime is of another version ({now.onnxruntime}; it was {self.onnxruntime})"


def sign(model: ir.Model, signature: Signature) -> None:
    """Leave `signature` in the metadata of a model that is to be written."""
    model.metadata_props[KEY] = json.dumps(signature.to_dict(), sort_keys=True)
    model.metadata_props[PLAN_KEY] = signature.plan.to_json(short=True)
    model.producer_name, model.producer_version = "onnxq", __version__


def signature_of(model: ir.Model) -> Signature | None:
    """What the metadata of a model say; None where they say nothing, or only by whom it was made.

    Raises:
        BadRecipe: they were changed.
    """
    if KEY not in model.metadata_props or PLAN_KEY not in model.metadata_props:
        return None
    try:
        found = schemas.checked(limits.parse_json(model.metadata_props[KEY]), schemas.SignatureFile)
        recipe = schemas.checked(found.recipe, Recipe)
        plan = parse_plan(model.metadata_props[PLAN_KEY])
    except (ValueError, BadRecipe) as error:
        raise BadRecipe(f"the metadata that say how the model was made are damaged: {error}") from None
    fields = msgspec.structs.asdict(found) | {"recipe": recipe, "plan": plan}
    return Signature(**{key: value for key, value in fields.items() if key != "target"})


def read_signature(path: str | Path) -> Signature:
    """How the model at `path` was made.

    Raises:
        BadModel: it is no model.
        BadRecipe: it does not say how it was made.
    """
    try:
        found = signature_of(load_model(path, to_look_at=True))
    except BadRecipe as error:
        raise BadRecipe(f"{path}: {error}") from None
    if found is None:
        raise BadRecipe(f"{path} does not say how it was made: name a model that this version of onnxq has quantized")
    return found
