"""Spoiled checkpoints that other projects' code made, with their configurations: a kind of case for `mutants.py`."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny
from attack import mutate, scenes
from attack.mutants_data import PLACES, Case
from attack.mutants_options import traps
from attack.mutants_trained import arrays_of, packed, spoil_tensors

MODEL, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
#: Whose matrices have other shapes than the checkpoints' [32, 64].
MODELS = (
    "g (float[1, 64] x) => (y) { [a] y = MatMul(x, w) }",
    "g (float[1, 48] x) => (y) { [a] y = MatMul(x, v) }",
    "g (float[1, 64] x) => (y) { [a] h = MatMul(x, w)  [b] y = MatMul(x, w) }",
)
TYPES = ("U8", "I8", "I32", "I64", "F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2", "BOOL", "U4", "", "x")


def imported(case: Case, folder: Path) -> list[str]:
    """A folder of a checkpoint: its configuration, its tensors, or what says in which file they lie, are others."""
    every = scenes.foreign()
    files = every[list(every)[case.r.randrange(len(every))]]
    place = folder / "theirs"
    place.mkdir()
    for name, content in files.items():
        (place / name).write_bytes(content)
    traps(folder)
    for seed in case.seeds:
        _spoil(place, random.Random(seed))
    target = ("onnxq", "ort-cpu", "onnx")[case.command % 3]
    words = ["import-weights", "theirs", "-t", target, "--no-check", "-o", "out/i.onnx"]
    if case.command // 3 % 3 == 0:
        tiny.save(
            tiny.model(MODELS[case.command // 9 % 3], {"w": tiny.normal(64, 32), "v": tiny.normal(48, 32)}), folder
        )
        words[1:1] = ["model.onnx"]
        words += ["--match", ("auto", "names", "structure", "shapes")[case.command // 27 % 4]]
    return words + ["--partial"] * (case.command // 5 % 2) + ["--shard-size", "1kB"] * (case.command // 11 % 4 == 0)


def _spoil(place: Path, r: random.Random) -> None:
    how = r.randrange(10)
    if how < 4:
        with contextlib.suppress(ValueError, OSError):
            table = json.loads((place / CONFIG).read_text())
            (place / CONFIG).write_text(json.dumps(_typed(mutate.spoil_json(table, r), r)))
    elif how < 7:
        spoil_tensors(place / MODEL, r)
    elif how == 7:
        _other_tensor(place / MODEL, r)
    elif how == 8:
        with contextlib.suppress(Exception):  # spoiled before
            names = [name for name in arrays_of((place / MODEL).read_bytes())[0] if name != "__metadata__"]
            table = {"metadata": {}, "weight_map": dict.fromkeys(names, MODEL)}
            table["weight_map"][r.choice([*names, "new"])] = r.choice([MODEL, *PLACES])
            (place / INDEX).write_text(json.dumps(r.choice([table, table, mutate.spoil_json(table, r)])))
    else:
        (place / r.choice([MODEL, CONFIG])).unlink(missing_ok=True)


def _typed(value: Any, r: random.Random) -> Any:
    """Numbers of a configuration that are others: sizes of groups, bits."""
    if isinstance(value, dict):
        return {key: _typed(each, r) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(each, r) for each in value]
    if isinstance(value, (int, float)) and r.random() < 0.15:
        return r.choice([0, 1, -1, 2, 3, 5, 7, 16, 48, 1 << 31, 1 << 70, 0.5, float("nan"), True])
    return value


def _other_tensor(path: Path, r: random.Random) -> None:
    """One tensor of another shape or type, whose bytes are as many as it says."""
    try:
        header, data = arrays_of(path.read_bytes())
        name = r.choice([name for name in header if name != "__metadata__"])
        begin, end = header[name]["data_offsets"]
        shape, size = list(header[name]["shape"]), (end - begin)
        width = max(1, size // max(1, _product(shape)))
        kind = r.randrange(4)
        if kind == 0:
            header[name]["shape"] = r.choice([shape[::-1], [_product(shape)], [1, *shape], [*shape, 1]])
        elif kind == 1:
            header[name]["dtype"] = r.choice(TYPES)
        elif kind == 2 and shape and shape[0] > 1:
            raw = data[begin : begin + size // shape[0] * (shape[0] - 1)]
            header[name] |= {"shape": [shape[0] - 1, *shape[1:]], "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        else:
            header[name] |= {"shape": r.choice([[0], [0, *shape], []]), "data_offsets": [0, 0]}
            if not header[name]["shape"]:
                header[name]["data_offsets"] = [len(data), len(data) + width]
                data += b"\1" * width
        path.write_bytes(packed(header, data))
    except Exception:  # spoiled before
        return


def _product(shape: list[int]) -> int:
    found = 1
    for n in shape:
        found *= n
    return found


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {"imported": imported}
