"""What a written model says of how it was made, in its metadata: enough to make it again, byte by byte.

`onnxq` holds who made it of what, as JSON; `onnxq.plan` the plan that was carried out.
"""

from __future__ import annotations

import hashlib
import json
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

from onnxq import targets
from onnxq.errors import BadRecipe
from onnxq.files import limits, schemas
from onnxq.model.load import load_model
from onnxq.plan import CHOICE_TYPES, Choice, Plan, plan_from
from onnxq.recipe import Recipe, require_scheme
from onnxq.version import __version__

KEY, PLAN_KEY = "onnxq", "onnxq.plan"
#: Of what is written of each choice, a list without names; the reason is a number in a list of reasons.
_ORDER = (
    *("node", "op", "method", "reason", "elements", "format", "block", "half", "shares"),
    *("granularity", "algorithm", "rank"),
)
_SignedChoice = schemas.form_of(Choice, CHOICE_TYPES | {"reason": schemas.Count}, _ORDER, required=["reason"])
_SignedPlan = msgspec.defstruct(
    "SignedPlan",
    [
        ("scheme", str),
        ("target", str),
        ("reasons", list[str]),
        ("choices", types.GenericAlias(list, _SignedChoice)),
        ("regions", bool, True),
    ],
    forbid_unknown_fields=True,
)


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
        is_trained: whether training changed what the plan is carried out on.
        held_back: samples that were kept out of calibration; None: as many as usual.
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
    is_trained: bool = False
    held_back: int | None = None
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
        return asdict(self) | {"target": self.plan.target, "plan": self.plan_hash, "recipe": _recipe(self.recipe)}

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
    model.metadata_props[KEY] = _short(signature)
    model.metadata_props[PLAN_KEY] = _short_plan(signature.plan)
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
        require_scheme(found.asked)
        plan = _plan_of(model.metadata_props[PLAN_KEY])
    except (ValueError, BadRecipe) as error:
        raise BadRecipe(f"the metadata that say how the model was made are damaged: {error}") from None
    fields = msgspec.structs.asdict(found) | {"recipe": recipe, "plan": plan}
    return Signature(**{key: value for key, value in fields.items() if key != "target"})


def target_of(model: ir.Model) -> str:
    """For which target a model says that it was made; empty where it says none that there is."""
    try:
        said = limits.parse_json(model.metadata_props.get(KEY, ""))
    except ValueError:
        return ""
    word = said.get("target") if isinstance(said, dict) else None
    return word if isinstance(word, str) and word in targets.names() else ""


def read_signature(path: str | Path) -> Signature:
    """How the model at `path` was made.

    Raises:
        BadModel: it is no model.
        BadRecipe: it does not say how it was made.
    """
    try:
        found = signature_of(load_model(path, to_look_at=True))
    except BadRecipe as error:
        raise BadRecipe(f"'{path}': {error}") from None
    if found is None:
        raise BadRecipe(f"'{path}' does not say how it was made: name a model that this version of onnxq has quantized")
    return found


def _short(signature: Signature) -> str:
    """Without what is usual: metadata count in small models."""
    usual = {field.name: field.default for field in msgspec.structs.fields(schemas.SignatureFile)}
    usual_recipe, recipe = asdict(Recipe()), _recipe(signature.recipe)
    table = {key: x for key, x in signature.to_dict().items() if x != usual[key]}
    table["recipe"] = {key: x for key, x in recipe.items() if x != usual_recipe[key]}
    return json.dumps(table, sort_keys=True, separators=(",", ":"))


def _recipe(recipe: Recipe) -> dict[str, object]:
    """As JSON has it, where a floor that was given as an integer is the same as one that was read."""
    floor = None if recipe.min_sqnr is None else float(recipe.min_sqnr)
    return asdict(recipe) | {"min_sqnr": floor}


def _short_plan(plan: Plan) -> str:
    reasons = {reason: i for i, reason in enumerate(dict.fromkeys(choice.reason for choice in plan))}
    choices = []
    for c in plan:
        row = [reasons[c.reason] if name == "reason" else getattr(c, name) for name in _ORDER]
        if not c.rank:
            row.pop()
        while row[-1] in (None, ""):
            row.pop()
        choices.append(row)
    table: dict[str, object] = {"scheme": plan.scheme, "target": plan.target, "reasons": list(reasons)}
    table["choices"] = choices
    if not plan.regions:
        table["regions"] = False
    return json.dumps(table, separators=(",", ":"))


def _plan_of(text: str) -> Plan:
    """
    Raises:
        ValueError, BadRecipe: it is none.
    """
    table: Any = schemas.checked(limits.parse_json(text), _SignedPlan)
    rows = []
    for row in map(msgspec.structs.asdict, table.choices):
        if row["reason"] >= len(table.reasons):
            raise ValueError(f"node '{row['node']}' has no reason")
        rows.append(row | {"reason": table.reasons[row["reason"]]})
    return plan_from(table.scheme, table.target, rows, regions=table.regions)
