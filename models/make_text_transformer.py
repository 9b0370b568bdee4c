"""Train a small character transformer on Python's own documentation and write it, with data, beside this file.

A decoder as large ones are built: rotary positions, causal attention, LayerNorm before each part, and weights whose
inner sizes are multiples of 32, which 4-bit blocks need. The text is `pydoc_data.topics`, which every Python carries.

    python models/make_text_transformer.py
"""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from export import export
from numpy.typing import NDArray
from torch import Tensor, nn

FOLDER = Path(__file__).parent
SEED = 0
CONTEXT = 128
STEPS, BATCH = 1500, 32
EVALUATED, CALIBRATED = 160, 64

#: Newline is 0, and the printable characters of ASCII from space to tilde are 1…95.
VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))
#: What the documentation writes beyond ASCII.
_FOLDED = str.maketrans("‘’“”–—…", "''\"\"--.")
_IDS = {character: number for number, character in enumerate(VOCABULARY)}


def encode(text: str) -> NDArray[np.uint8]:
    """The ids of `text`'s characters; curly quotes and dashes become straight ones, what is not known `?`."""
    return np.array([_IDS.get(c, _IDS["?"]) for c in text.translate(_FOLDED)], np.uint8)


def read_text() -> str:
    """The topics, each paragraph once: some topics quote others whole, which would leak into the evaluation."""
    paragraphs = "\n\n".join(topics.values()).split("\n\n")
    return "\n\n".join(dict.fromkeys(paragraphs))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (x[i], x[i + half]) of `[batch, heads, seq, size]` by `[seq, half]` angles (RoFormer, 2021)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to what came in."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], future: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = rotate(q, *turn) @ rotate(k, *turn).transpose(2, 3) * q.shape[-1] ** -0.5
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class TextTransformer(nn.Module):
    """`[batch, seq]` ids to `[batch, seq, 96]` logits of the character that comes next, for any length."""

    frequencies: Tensor

    def __init__(self, width: int = 96, layers: int = 2, heads: int = 4, hidden: int = 256) -> None:
        super().__init__()
        half = width // heads // 2
        self.register_buffer("frequencies", 1000.0 ** -(torch.arange(half) / half), persistent=False)
        self.embedding = nn.Embedding(len(VOCABULARY), width)
        self.layers = nn.ModuleList(Block(width, heads, hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(VOCABULARY), bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1])
        angles = positions.unsqueeze(1) * self.frequencies
        turn = angles.cos(), angles.sin()
        future = positions.unsqueeze(1) < positions.unsqueeze(0)
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, turn, future)
        return self.head(self.norm(x))


def train(text: Tensor) -> TextTransformer:
    """The network after `STEPS` batches of random pieces of `text`."""
    network = TextTransformer()
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS, pct_start=0.1)
    total = 0.0
    for step in range(1, STEPS + 1):
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1))
        pieces = text[starts + torch.arange(CONTEXT + 1)]
        loss = nn.functional.cross_entropy(network(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.item()
        if step % 100 == 0:
            print(f"step {step:4}  loss {total / 100:.3f}", flush=True)
            total = 0.0
    return network


def windows(text: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """`count` pieces of `CONTEXT + 1` characters, evenly spread over `text`."""
    starts = np.linspace(0, len(text) - CONTEXT - 1, count).astype(int)
    return np.stack([text[i : i + CONTEXT + 1] for i in starts])


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # The order of sums depends on the number of threads.
    ids = encode(read_text())
    known, held_out = np.split(ids, [len(ids) * 9 // 10])
    network = train(torch.from_numpy(known).long())
    example = torch.zeros(2, CONTEXT, dtype=torch.int64)
    export(network, example, "ids", {0: "batch", 1: "seq"}, FOLDER / "text_transformer.onnx")
    np.savez_compressed(FOLDER / "text_transformer_calibration.npz", ids=windows(known, CALIBRATED)[:, :-1])
    pieces = windows(held_out, EVALUATED)
    np.savez_compressed(FOLDER / "text_transformer_eval.npz", ids=pieces[:, :-1], labels=pieces[:, 1:])


if __name__ == "__main__":
    main()
