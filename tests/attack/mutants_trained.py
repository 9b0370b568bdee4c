"""Spoiled adapters, and what training has left of itself: kinds of cases for `mutants.py`."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapters
import numpy as np
from attack import mutate, scenes
from attack.mutants_data import Case, spoil
from attack.mutants_options import traps
from click.testing import CliRunner
from numpy.typing import NDArray

from onnxq import cli
from onnxq.runtime.own_files.adapter_file import read_adapter_file, write_adapter_file

#: What uses an adapter.
USES = (
    ["lora", "convert", "base.onnx", "IT", "-o", "out/again"],
    ["lora", "convert", "base.onnx", "IT", "-o", "out/again.onnx_adapter"],
    ["lora", "convert", "base.onnx", "IT", "-o", "out/with.onnx"],
    ["lora", "merge", "base.onnx", "IT", "-o", "out/merged.onnx"],
)
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


def arrays_of(raw: bytes) -> tuple[Any, bytes]:
    """Header and data of a safetensors file."""
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def packed(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def spoil_tensors(path: Path, r: random.Random) -> None:
    """A safetensors file whose header, numbers or bytes are others."""
    how = r.randrange(4)
    try:
        header, data = arrays_of(path.read_bytes())
    except (ValueError, struct.error, OSError):
        return
    if how == 0:
        path.write_bytes(mutate.spoil_numbers(path.read_bytes(), r))
    elif how == 1:
        path.write_bytes(packed(mutate.spoil_json(header, r), data))
    elif how == 2 and isinstance(header, dict) and header:
        names = [name for name in header if name != "__metadata__"] or [""]
        name = r.choice(names)
        entry = header.pop(name, None)
        if r.random() < 0.6:
            header[r.choice([name + ".x", name[:-1], name.upper(), r.choice(names), *mutate.TEXTS])] = entry
        path.write_bytes(packed(header, data))
    else:  # numbers that are none
        raw = bytearray(data)
        for _ in range(r.choice([1, 40])):
            at = r.randrange(max(1, len(raw) - 4))
            raw[at : at + 4] = r.choice(
                [b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\0\x7c\0\x7c", b"\0" * 4]
            )
        path.write_bytes(packed(header, bytes(raw)))


def adapter(case: Case, folder: Path) -> list[str]:
    """An adapter of either kind whose config, names, shapes, types or numbers are others."""
    scenes.put(folder, "base")
    traps(folder)
    is_folder = case.command % 2
    for seed in case.seeds:
        r = random.Random(seed)
        if is_folder and r.random() < 0.4:
            config = folder / "peft" / CONFIG
            with contextlib.suppress(ValueError):
                table = mutate.spoil_json(json.loads(config.read_text()), r)
                if isinstance(table, dict) and r.random() < 0.5:
                    table[r.choice(["alpha_pattern", "rank_pattern"])] = {
                        r.choice(["(a+)+$", "(", "*", ""]): r.choice(mutate.WEIRD)
                    }
                config.write_text(json.dumps(table))
        elif is_folder:
            spoil_tensors(folder / "peft" / TENSORS, r)
        else:
            _spoil_adapter(case, folder / "a.onnx_adapter", r)
    words = USES[case.command // 2 % len(USES)]
    return [("peft" if is_folder else "a.onnx_adapter") if word == "IT" else word for word in words]


def _spoil_adapter(case: Case, path: Path, r: random.Random) -> None:
    if r.random() < 0.4:
        spoil(case, path)
        return
    with contextlib.suppress(Exception):  # spoiled before
        arrays = dict(read_adapter_file(path))
        name = r.choice(list(arrays))
        arrays[r.choice([name, name, name + "x", *mutate.TEXTS[:8]])] = _other(arrays.pop(name), r)
        path.unlink()
        write_adapter_file(path, arrays)


def _other(x: NDArray, r: random.Random) -> NDArray:
    made: list[Callable[[], NDArray]] = [
        lambda: x * np.float32("nan"),
        lambda: x * np.float32(1e38) * 10,
        lambda: x[:0],
        lambda: x[:, :0],
        lambda: x.T.copy(),
        lambda: x.astype(r.choice([np.float64, np.float16, np.int8, np.bool_])),
        lambda: x.reshape(-1),
        lambda: x[None],
        lambda: x[:-1],
        lambda: np.zeros((), np.float32),
    ]
    return r.choice(made)()


LORA_TRAIN = (
    *("lora", "train", "base.onnx", "--data", "base.npz", "--labels", "y", "--loss", "adapters:constant", "--epochs"),
    *("1", "--steps", "2", "--progress", "out/p.npz", "-o", "out/a.onnx_adapter"),
)
_TRAIN = (
    *("train", "model.onnx", "-s", "w4a16", "-t", "onnx", "--data", "data.npz", "--checkpoint", "out/t.training"),
    *("--block-steps", "1", "--checkpoint-steps", "1", "--no-check", "-o", "out/t.onnx", "--steps", "4"),
)


def trained(case: Case, folder: Path) -> list[str]:
    """A checkpoint of `train`: bytes, members of the archive, or values of the state that the right key goes with."""
    scenes.put(folder, "model")
    traps(folder)
    path = folder / "out" / "t.training"
    raw = _interrupted(folder)
    path.write_bytes(raw)
    for seed in case.seeds:
        r = random.Random(seed)
        how = r.randrange(5)
        if how == 0:
            mutate.spoil_file(path, r)
        elif how == 1:
            _spoil_members(path, r)
        else:
            _spoil_state(path, r)
    return list(_TRAIN)


def _interrupted(folder: Path) -> bytes:
    """What a run keeps that ends before its last step; the words of a run are part of what it is of."""
    import torch

    from onnxq.training.checkpoint import Checkpoint

    kept: list[bytes] = []
    save = Checkpoint.save

    def saving(self: Checkpoint, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save({"kind": "onnxq training", "key": self._key, "state": state}, buffer)
        kept.append(buffer.getvalue())

    Checkpoint.save = saving  # type: ignore[method-assign]
    try:
        result = CliRunner().invoke(cli.main, list(_TRAIN))
    finally:
        Checkpoint.save = save  # type: ignore[method-assign]
    assert kept, result.output
    (folder / "out" / "t.onnx").unlink(missing_ok=True)
    return kept[len(kept) // 2]


def _spoil_members(path: Path, r: random.Random) -> None:
    """What lies in the archive: a piece of other bytes, packed, missing, twice."""
    try:
        with zipfile.ZipFile(path) as found:
            members = {info.filename: found.read(info) for info in found.infolist()}
    except Exception:  # spoiled before
        return
    if not members:  # cut off before
        return
    name = r.choice(list(members))
    how = r.randrange(4)
    if how == 0:
        del members[name]
    elif how == 1:
        members[name] = mutate.spoil_bytes(members[name], r)
    elif how == 2:
        members[name] = b"\0" * (1 << 24)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if how > 1 else zipfile.ZIP_STORED) as made:
        for each, content in members.items():
            made.writestr(each, content)


def _spoil_state(path: Path, r: random.Random) -> None:
    import torch

    try:
        whole = torch.load(path, weights_only=True)
    except Exception:  # spoiled before
        return
    places: list[tuple[Any, Any]] = []

    def below(value: Any) -> None:
        each: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in each:
            places.append((value, key))
            below(inner)

    below(whole["state"])
    if not places:
        return
    place, key = r.choice(places)
    x = place[key]
    odd: list[Any] = [
        *mutate.WEIRD,
        torch.zeros(0),
        torch.zeros(()),
        torch.zeros(1).expand(1 << 40),
        torch.ones(3, dtype=torch.int64),
    ]
    if isinstance(x, torch.Tensor) and x.numel() < 1 << 20:  # not the one above, of a time before
        odd += [
            x.double(),
            x * float("nan"),
            x.reshape(-1)[:-1].clone(),
            x.new_zeros(()).expand(x.shape),
            x.to(torch.bool),
        ]
    elif r.random() < 0.2:
        del place[key]
        torch.save(whole, path)
        return
    place[key] = r.choice(odd)
    with contextlib.suppress(Exception):
        torch.save(whole, path)


def progress(case: Case, folder: Path) -> list[str]:
    """What `lora train` keeps of how far it came."""
    scenes.put(folder, "base")
    traps(folder)
    (folder / "adapters.py").write_bytes(Path(adapters.__file__).read_bytes())
    from onnxq.training.adapters.learning import resume
    from onnxq.training.adapters.learning import train as training

    remaining: list[bytes] = []
    save = resume.save
    path = folder / "out" / "p.npz"

    def saving(*arguments: Any) -> None:
        save(*arguments)
        remaining.append(path.read_bytes())

    resume.save = training.resume.save = saving
    try:
        result = CliRunner().invoke(cli.main, list(LORA_TRAIN))
    finally:
        resume.save = training.resume.save = save
    assert remaining, result.output
    path.write_bytes(remaining[0])
    (folder / "out" / "a.onnx_adapter").unlink(missing_ok=True)
    for seed in case.seeds:
        r = random.Random(seed)
        if r.random() < 0.4:
            mutate.spoil_file(path, r)
        else:
            _spoil_progress(path, r)
    return list(LORA_TRAIN)


def _spoil_progress(path: Path, r: random.Random) -> None:
    try:
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files}
    except Exception:  # spoiled before
        return
    if not arrays:
        return
    name = r.choice([*arrays, *({"progress"} & arrays.keys())])
    with contextlib.suppress(IndexError, ValueError):  # what was spoiled before may be no text any more
        if name == "progress":
            value = mutate.spoil_json(json.loads(bytes(arrays[name]).decode()), r)
            arrays[name] = np.frombuffer(json.dumps(value).encode(), np.uint8)
        else:
            arrays[name] = _other(arrays[name], r)
    np.savez(path, **arrays)


KINDS: dict[str, Callable[[Any, Path], list[str]]] = {"adapter": adapter}
if importlib.util.find_spec("torch"):  # which has to train first
    KINDS |= {"trained": trained, "learnt": progress}
