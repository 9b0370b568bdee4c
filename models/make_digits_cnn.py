"""Train a small residual network on scikit-learn's handwritten digits and write it, with data, beside this file.

The network has what makes quantizing an image model interesting: BatchNorm to fold, a residual Add whose two sides
have different ranges, pooling, and a last Linear. The 8x8 digits are enlarged to 32x32 in the data, not in the graph,
so that the convolutions have enough to do for their speed to matter.

    python models/make_digits_cnn.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from export import export
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

FOLDER = Path(__file__).parent
SEED = 0
SIZE = 32
EPOCHS, BATCH = 20, 64
EVALUATED, CALIBRATED = 540, 128


def enlarge(images: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Images of 0…16, `[n, 8, 8]`, as `[n, 1, 32, 32]` of 0…255, bilinear between pixel centres."""
    n = images.shape[-1]
    at = np.clip((np.arange(SIZE) + 0.5) * n / SIZE - 0.5, 0, n - 1)
    # Row i holds the two weights that mix the old pixels into new pixel i.
    mix = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(n)[None, :]))
    large = mix @ images @ mix.T
    return np.rint(large * 255 / 16).astype(np.uint8)[:, None]


class Residual(nn.Module):
    """`relu(x + f(x))`, f two 3x3 convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(y)))


class DigitsCNN(nn.Module):
    """`[batch, 1, 32, 32]` of 0…255 to `[batch, 10]`. The first BatchNorm makes the scale of the pixels irrelevant."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.block1 = Residual(width)
        self.pool = nn.MaxPool2d(2)
        self.block2 = Residual(width)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(image)))
        x = self.block2(self.pool(self.block1(x)))
        return self.head(self.average(x).flatten(1))


def shift(images: Tensor) -> Tensor:
    """The whole batch moved by up to three pixels: 1257 images are few."""
    down, right = (int(i) for i in torch.randint(-3, 4, (2,)))
    return torch.roll(images, (down, right), (2, 3))


def train(images: Tensor, labels: Tensor) -> DigitsCNN:
    """The network after `EPOCHS` passes over the data."""
    network = DigitsCNN()
    steps = -(-len(images) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=EPOCHS * steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.cross_entropy(network(shift(images[rows])), labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch + 1:2}  loss {total / len(images):.3f}")
    return network


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # The order of sums depends on the number of threads.
    digits = load_digits()
    x, x_eval, y, y_eval = train_test_split(
        enlarge(digits.images), digits.target, test_size=EVALUATED, random_state=SEED, stratify=digits.target
    )
    network = train(torch.from_numpy(x).float(), torch.from_numpy(y))
    export(network, torch.zeros(2, 1, SIZE, SIZE), "image", {0: "batch"}, FOLDER / "digits_cnn.onnx")
    np.savez_compressed(FOLDER / "digits_cnn_calibration.npz", image=x[:CALIBRATED])
    np.savez_compressed(FOLDER / "digits_cnn_eval.npz", image=x_eval, labels=y_eval.astype(np.uint8))


if __name__ == "__main__":
    main()
