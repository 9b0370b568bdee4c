"""Spoiled bundles, reports and models whose names are text of a page: kinds of cases for `mutants.py`."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from attack import mutate, scenes
from attack.mutants_data import PLACES, Case, spoil
from attack.mutants_options import traps

from onnxq.bundles.manifest import MANIFEST, SAMPLES

#: Names that would be something else, were they put into a page as they are.
NAMES = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><b>",
    "{{ 7 * 7 }}",
    "&lt;",
    "\x1b[2J",
)


def bundle(case: Case, folder: Path) -> list[str]:
    """A bundle whose manifest, files or links are others, most often with sums that fit them."""
    scenes.put(folder, "bundle")
    traps(folder)
    place = folder / "bundle"
    for seed in case.seeds:
        _spoil_bundle(place, random.Random(seed), case)
    return ["verify", "bundle", *(["--json"] if case.command % 3 else []), *(["--threads", "1"] * (case.command % 2))]


def _spoil_bundle(place: Path, r: random.Random, case: Case) -> None:
    how = r.randrange(9)
    names = [each.name for each in place.iterdir() if each.is_file()]
    if how < 3 or not names:
        table: Any = _table(place)
        _write(place, mutate.spoil_json(table, r))
    elif how == 3:
        chosen = place / r.choice([MANIFEST, *names])
        if chosen.is_file():  # and not what an earlier seed put in its place
            spoil(case, chosen)
    elif how < 6:  # what it holds, with its sum
        name = r.choice([SAMPLES, SAMPLES, *names])
        if (place / name).is_file():
            mutate.spoil_file(place / name, r)
            _sign(place, name)
    elif how == 6:
        name = r.choice(names)
        (place / name).unlink()
        kinds: list[Callable[[], object]] = [
            lambda: (place / name).symlink_to(mutate.elsewhere(place.parent)),
            lambda: os.mkfifo(place / name),
            lambda: (place / name).mkdir(),
            lambda: (place / name).symlink_to(name),
        ]
        r.choice(kinds)()
    elif how == 7:
        table = _table(place)
        if isinstance(table, dict) and isinstance(table.get("files"), dict):
            entry = {"bytes": r.choice([0, 1, 2**62, -1]), "sha256": r.choice(["0" * 64, "x", "0" * 63 + "A"])}
            table["files"][r.choice([*PLACES, "a/../b", "./x", "C:x", "a\\b"])] = entry
            table["model"] = r.choice([table.get("model"), *PLACES, SAMPLES, MANIFEST])
            table["library"] = r.choice([None, None, SAMPLES, *PLACES])
            _write(place, table)
    else:
        _spoil_model(place, r)


def _spoil_model(place: Path, r: random.Random) -> None:
    path = place / "model.onnx"
    if path.is_file():
        try:
            proto = onnx.load_model_from_string(path.read_bytes())
        except Exception:  # spoiled before
            return
        mutate.spoil_model(proto, r)
        path.write_bytes(proto.SerializeToString())
        _sign(place, "model.onnx")


def _table(place: Path) -> Any:
    if not (place / MANIFEST).is_file():  # but a pipe, by now
        return {}
    try:
        return json.loads((place / MANIFEST).read_text())
    except (ValueError, OSError):
        return {}


def _write(place: Path, table: Any) -> None:
    if (place / MANIFEST).is_file():
        (place / MANIFEST).write_text(json.dumps(table))


def _sign(place: Path, name: str) -> None:
    table, raw = _table(place), (place / name).read_bytes()
    if isinstance(table, dict) and isinstance(table.get("files"), dict):
        table["files"][name] = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        _write(place, table)


def report(case: Case, folder: Path) -> list[str]:
    """A report as JSON, or a plan, that becomes a page."""
    name = ("report", "plan")[case.command % 2]
    scenes.put(folder, name)
    path = folder / f"{name}.json"
    for seed in case.seeds:
        r = random.Random(seed)
        if r.random() < 0.8:
            try:
                value = json.loads(path.read_text())
            except ValueError:
                break
            path.write_text(json.dumps(_renamed(mutate.spoil_json(value, r), r)))
        else:
            path.write_bytes(mutate.spoil_bytes(path.read_bytes(), r))
    (folder / "out").mkdir()
    return ["report", path.name, "-o", "out/page.html", "--json", "out/again.json"]


def _renamed(value: Any, r: random.Random) -> Any:
    """The value with a few of its texts replaced by those of `NAMES`."""
    if isinstance(value, dict):
        return {key if r.random() < 0.97 else r.choice(NAMES): _renamed(each, r) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, r) for each in value]
    return r.choice(NAMES) if isinstance(value, str) and r.random() < 0.1 else value


def page(case: Case, folder: Path) -> list[str]:
    """Pages and findings of a model that is spoiled or has such names."""
    scenes.put(folder, "model", "quantized")
    name = ("model.onnx", "q.onnx")[case.command % 2]
    proto = onnx.load(folder / name)
    for seed in case.seeds:
        r = random.Random(seed)
        if r.random() < 0.5:
            mutate.spoil_model(proto, r)
        elif proto.graph.node:
            r.choice(list(proto.graph.node)).name = r.choice(NAMES)
    (folder / name).write_bytes(proto.SerializeToString())
    (folder / "out").mkdir()
    commands = (
        ["report", name, "-o", "out/page.html"],
        ["report", name, "-o", "out/page.html", "--against", "model.onnx", "--data", "data.npz", "--threads", "1"],
        ["check", "model.onnx", "q.onnx", "--html", "out/page.html"],
        ["check", "model.onnx", "q.onnx", "--by-layer", "--html", "out/page.json"],
        ["check", name, "--target", ("qnn", "tensorrt", "coreml", "webgpu")[case.command % 4]],
        ["bench", name, "--seconds", "0.01", "--threads", "1", "--json"],
        ["export", name, "-o", "out/b"],
        ["export", name, "-o", "out/b", "--reference", "model.onnx", "--data", "data.npz"],
        ["analyze", name, "-w", "int4", "--html", "out/page.html"],
        ["benchmark", name, "-w", "int8", "--csv"],
        ["doctor", name, "--sarif"],
        ["doctor", name, "--fix", "-o", "out/x.onnx"],
        ["profile", name, "-o", "out/p.json"],
    )
    return commands[case.command // 4 % len(commands)]


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {"bundle": bundle, "report": report, "page": page}
