"""The committed tables of adapters: `python tests/zoo/lora.py [--write] [share] [memory]`.

*share*: text_transformer with every weight in nf4 learns new text, Shakespeare's, by adapters of rank 8, and the float
model learns it by all its weights, for as many steps and at the best of several rates. What counts is how much of what
the whole float model gains the adapters gain, both from where the float model was.

*memory*: a model of 1.0 GB in float32, its base in 4 bits, learns by adapters of rank 8: the most memory that the
process ever held.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from tables import TableRow, read_rows

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "adapters.md"
HEADER = ("case", "figure", "found", "at least", "aim")
SHARED = Path(os.environ.get("ONNXQ_SHARED", ROOT.parent / "shared"))
CONTEXT, PIECES, SEEN, STEPS, BATCH, RANK, SEED = 128, 4096, 32, 1000, 16, 8, 0
RATES_OF_ALL = (2e-3, 4e-3)
RATE, RATIO = 1e-2, 2.0


@dataclass(frozen=True)
class Row(TableRow):
    """One line of the table, as text."""

    case: str
    figure: str
    found: str
    least: str
    aim: str


def text(folder: Path) -> tuple[Path, Path]:
    """(pieces to learn from, pieces to judge by): of the first nine tenths of the text and of the rest."""
    characters = np.frombuffer((SHARED / "data" / "text" / "tinyshakespeare.txt").read_bytes(), np.uint8)
    # As models/make_text_transformer.py counts them: a newline is 0, and what is printable follows from 1 on.
    ids = np.where(characters == ord("\n"), 0, characters.astype(np.int64) - ord(" ") + 1)
    known, unseen = np.split(ids, [len(ids) * 9 // 10])
    files = folder / "known.npz", folder / "unseen.npz"
    for file, part, count in zip(files, (known, unseen), (PIECES, 256), strict=True):
        starts = np.linspace(0, len(part) - CONTEXT - 1, count).astype(int)
        pieces = np.stack([part[i : i + CONTEXT + 1] for i in starts])
        np.savez(file, ids=pieces[:, :-1], y=pieces[:, 1:])
    return files


def nats(model: Path, unseen: Path) -> float:
    """The loss of a file, as onnxruntime computes it."""
    import onnxq

    data, session, sums = np.load(unseen), onnxq.session(model), 0.0
    for start in range(0, len(data["ids"]), 32):
        x = session.run(None, {"ids": data["ids"][start : start + 32]})[0].astype(np.float64)
        x = x - x.max(-1, keepdims=True)
        logs = x - np.log(np.exp(x).sum(-1, keepdims=True))
        sums -= np.take_along_axis(logs, data["y"][start : start + 32, :, None], -1).sum()
    return float(sums / data["y"].size)


def whole(model: Path, known: Path, unseen: Path, rate: float) -> float:
    """The loss after all weights of the float model learned."""
    import torch
    from torch.nn import functional

    from onnxq.training import module

    torch.manual_seed(SEED)
    network, data, judged = module(model), np.load(known), np.load(unseen)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=STEPS, pct_start=0.05)
    ids, y = (torch.from_numpy(data[name]) for name in ("ids", "y"))

    def loss(rows: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(network(ids=rows)["logits"].flatten(0, 1), right.flatten())

    for _ in range(STEPS):
        chosen = torch.randint(len(ids), (BATCH,))
        optimizer.zero_grad()
        loss(ids[chosen], y[chosen]).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float(loss(torch.from_numpy(judged["ids"]), torch.from_numpy(judged["y"])))


def share(folder: Path) -> list[Row]:
    """Of what all weights of the float model gain, what adapters of the 4-bit one do."""
    import onnxq
    from onnxq.samples.sampling import Sampling
    from onnxq.training.adapters.learning.fit import FitOptions
    from onnxq.training.adapters.learning.train import Task, train_adapter

    known, unseen = text(folder)
    model, base, out = ROOT / "models" / "text_transformer.onnx", folder / "base.onnx", folder / "out.onnx"
    recipe = onnxq.Recipe("nf4", min_sqnr=float("-inf"), accuracy_level=0)
    onnxq.quantize(model, base, recipe=recipe, target="onnxq", force=True)
    options = FitOptions(epochs=1000, steps=STEPS, batch=BATCH, rate=RATE, ratio=RATIO, seed=SEED, patience=100)
    task = Task({"*": RANK}, labels="y", teacher=model, initial="reconstruct")
    done = train_adapter(base, out, Sampling(known, limit=None, held_back=SEEN), task, options=options)
    before, of_base, after = (nats(path, unseen) for path in (model, base, out))
    losses = {rate: whole(model, known, unseen, rate) for rate in RATES_OF_ALL}
    best = min(losses.values())
    gained = (before - after) / (before - best)
    print(f"float {before:.4f}, nf4 {of_base:.4f}, adapters {after:.4f} ({done.after:.4f} held back), all {losses}")
    case = f"text_transformer, nf4 and adapters of rank {RANK}, Shakespeare"
    figure = f"share of the gain of all float weights ({before:.3f} → {best:.3f} nats; adapters {after:.3f})"
    return [Row(case, figure, f"{100 * gained:.1f} %", "80 %", "95 %")]


def large(folder: Path, gigabytes: float) -> Path:
    """A model of so many bytes of float32: products of 4096 inputs and outputs, each added to what came in."""
    width = 4096
    layers = max(1, round(gigabytes * 1e9 / (4 * width * width)))
    path, data = folder / "large.onnx", folder / "large.data"
    nodes, tensors, x = [], [], "x"
    with data.open("wb") as file:
        for i in range(layers):
            w = np.random.default_rng(i).standard_normal((width, width), dtype=np.float32) / width**0.5
            tensor = onnx.TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[width, width])
            tensor.data_location = onnx.TensorProto.EXTERNAL
            said = {"location": data.name, "offset": str(file.tell()), "length": str(w.nbytes)}
            tensor.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in said.items())
            file.write(w.tobytes())
            tensors.append(tensor)
            nodes += [
                helper.make_node("MatMul", [x, f"w{i}"], [f"h{i}"], f"layers.{i}/up"),
                helper.make_node("Tanh", [f"h{i}"], [f"r{i}"]),
                helper.make_node("Add", [x, f"r{i}"], [f"x{i}"]),
            ]
            x = f"x{i}"
    nodes[-1].output[0] = "y"
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "large", values[:1], values[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def memory(folder: Path, gigabytes: float = 1.0) -> list[Row]:
    """The most memory that training held."""
    import onnxq

    model, base, data = large(folder, gigabytes), folder / "base.onnx", folder / "data.npz"
    size = sum(file.stat().st_size for file in folder.glob("large.*"))
    onnxq.quantize(model, base, "nf4", target="onnxq", check=False, force=True)
    rng = np.random.default_rng(0)
    np.savez(data, x=rng.standard_normal((32, 4096), np.float32), y=rng.standard_normal((32, 4096), np.float32))
    words = ["lora", "train", str(base), "--data", str(data), "--labels", "y", "--lora", str(RANK), "--json"]
    words += ["--steps", "6", "--batch", "8", "--held-back", "4", "-o", str(folder / "large.onnx_adapter"), "--force"]
    made = subprocess.run([sys.executable, "-m", "onnxq", *words], check=True, capture_output=True, text=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    said = json.loads(made.stdout)
    print(f"{size / 1e9:.2f} GB in float32, {said['packed'] / 1e9:.3f} GB packed, peak {peak / 1e9:.2f} GB")
    case = f"{size / 1e9:.1f} GB of float32, nf4 and adapters of rank {RANK}, 8 samples at once"
    return [Row(case, "most memory of the process, torch and all", f"{peak / 1e9:.2f} GB", "1.2 GB", "0.8 GB")]


CASES = {"memory": memory, "share": share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="[default: all]")
    parser.add_argument("--write", action="store_true", help="put the rows into the table")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.cases or CASES:  # memory first: what children held is asked of all of them
        with tempfile.TemporaryDirectory() as folder:
            rows += CASES[name](Path(folder))
    print("\n".join(map(str, rows)))
    if arguments.write:
        old = read_rows(TABLE, Row, HEADER)
        merged = {row.case: row for row in (*old, *rows)}
        lines = TABLE.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if not line.startswith("| ") or line.split(" | ")[0][2:] not in merged]
        at = next(i for i, line in enumerate(kept) if line.startswith("|---") and "case" in kept[i - 1])
        TABLE.write_text("\n".join([*kept[: at + 1], *map(str, merged.values()), *kept[at + 1 :]]) + "\n")


if __name__ == "__main__":
    main()
