"""Networks on pictures: `MODELS` by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from exports.builder import Architecture, Graph, images
from onnx import TensorProto

FLOAT = TensorProto.FLOAT
SIZES = ((2, 32), (1, 32), (3, 48))


def start(g: Graph, channels: int = 3) -> str:
    return g.input("x", FLOAT, "B", channels, "H", "W")


def head(g: Graph, x: str, channels: int, classes: int = 16) -> None:
    g.output(g.linear(g.Flatten(g.GlobalAveragePool(x)), channels, classes), "logits", "B", classes)


def relu6(g: Graph, x: str) -> str:
    return g.Clip(x, g.scalar(0.0), g.scalar(6.0))


def resnet(folder: Path) -> Path:
    """Batch norms to be folded, shortcuts with and without a convolution."""
    g = Graph(20)
    x = g.Relu(g.batch_norm(g.conv(start(g), 3, 16, 7, stride=2), 16))
    x = g.MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for i, o, stride in ((16, 16, 1), (16, 32, 2), (32, 32, 1)):
        y = g.Relu(g.batch_norm(g.conv(x, i, o, stride=stride), o))
        y = g.batch_norm(g.conv(y, o, o), o)
        short = x if i == o else g.batch_norm(g.conv(x, i, o, 1, stride=stride), o)
        x = g.Relu(g.Add(y, short))
    head(g, x, 32)
    return g.save(folder)


def mobilenet_v2(folder: Path) -> Path:
    """Inverted residuals, depthwise convolutions, Clip at six."""
    g = Graph(21)
    x = relu6(g, g.conv(start(g), 3, 16, stride=2))
    for i, o, stride in ((16, 16, 1), (16, 24, 2), (24, 24, 1)):
        y = relu6(g, g.conv(x, i, 4 * i, 1))
        y = relu6(g, g.conv(y, 4 * i, 4 * i, 3, group=4 * i, stride=stride))
        y = g.conv(y, 4 * i, o, 1)
        x = g.Add(x, y) if i == o and stride == 1 else y
    head(g, relu6(g, g.conv(x, 24, 64, 1)), 64)
    return g.save(folder)


def squeeze(g: Graph, x: str, n: int, gate: str) -> str:
    s = g.Relu(g.conv(g.GlobalAveragePool(x), n, n // 4, 1))
    s = g.conv(s, n // 4, n, 1)
    return g.Mul(x, getattr(g, gate)(s))


def mobilenet_v3(folder: Path) -> Path:
    """HardSwish and squeeze-and-excitation behind a HardSigmoid."""
    g = Graph(22)
    x = g.HardSwish(g.conv(start(g), 3, 16, stride=2))
    for i, o in ((16, 24), (24, 24)):
        y = g.HardSwish(g.conv(x, i, 4 * i, 1))
        y = squeeze(g, g.HardSwish(g.conv(y, 4 * i, 4 * i, 5, group=4 * i)), 4 * i, "HardSigmoid")
        y = g.conv(y, 4 * i, o, 1)
        x = g.Add(x, y) if i == o else y
    head(g, x, 24)
    return g.save(folder)


def efficientnet(folder: Path) -> Path:
    """SiLU written as Mul and Sigmoid, squeeze-and-excitation behind a Sigmoid."""
    g = Graph(23)
    x = g.silu(g.batch_norm(g.conv(start(g), 3, 16, stride=2), 16))
    for i, o in ((16, 24), (24, 24)):
        y = g.silu(g.batch_norm(g.conv(x, i, 4 * i, 1), 4 * i))
        y = squeeze(g, g.silu(g.batch_norm(g.conv(y, 4 * i, 4 * i, 3, group=4 * i), 4 * i)), 4 * i, "Sigmoid")
        y = g.batch_norm(g.conv(y, 4 * i, o, 1), o)
        x = g.Add(x, y) if i == o else y
    head(g, x, 24)
    return g.save(folder)


def convnext(folder: Path) -> Path:
    """7×7 depthwise convolutions, norms over channels that are last, products, a scale for each channel."""
    g = Graph(24)
    x = g.conv(start(g), 3, 32, 4, stride=4, pads=[0] * 4)
    for _ in range(2):
        y = g.Transpose(g.conv(x, 32, 32, 7, group=32), perm=[0, 2, 3, 1])
        y = g.linear(g.gelu(g.linear(g.layer_norm(y, 32), 32, 128)), 128, 32)
        x = g.Add(x, g.Transpose(g.Mul(y, g.vector(32, 1.0)), perm=[0, 3, 1, 2]))
    head(g, x, 32)
    return g.save(folder)


def vit(folder: Path) -> Path:
    """Patches by a convolution, a class token, a table of positions that is added."""
    g = Graph(25)
    x = g.input("x", FLOAT, "B", 3, 32, 32)
    x = g.conv(x, 3, 64, 8, stride=8, pads=[0] * 4)
    x = g.Transpose(g.Reshape(x, g.ints(0, 0, -1)), perm=[0, 2, 1])
    token = g.Expand(g.weight(1, 1, 64), g.Concat(g.length(x, 0), g.ints(1, 64), axis=0))
    x = g.Add(g.Concat(token, x, axis=1), g.weight(1, 17, 64, fan_in=4))
    for _ in range(2):
        x = g.block(x, 64, 4)
    first = g.Gather(g.layer_norm(x, 64), g.const(0, np.int64), axis=1)
    g.output(g.Gemm(first, g.weight(16, 64, fan_in=64), g.vector(16), transB=1), "logits", "B", 16)
    return g.save(folder)


def unet(folder: Path) -> Path:
    """Down by pooling, up by transposed convolutions and by Resize, joined by Concat."""
    g = Graph(26)
    a = g.Relu(g.batch_norm(g.conv(start(g), 3, 16), 16))
    b = g.Relu(g.conv(g.MaxPool(a, kernel_shape=[2, 2], strides=[2, 2]), 16, 32))
    c = g.Relu(g.conv(g.MaxPool(b, kernel_shape=[2, 2], strides=[2, 2]), 32, 64))
    up = g.ConvTranspose(c, g.weight(64, 32, 2, 2, fan_in=64), g.vector(32), strides=[2, 2], kernel_shape=[2, 2])
    d = g.Relu(g.conv(g.Concat(up, b, axis=1), 64, 32))
    up = g.Resize(d, "", g.const([1, 1, 2, 2], np.float32), mode="nearest", nearest_mode="floor",
                  coordinate_transformation_mode="asymmetric")  # fmt: skip
    e = g.Relu(g.conv(g.Concat(up, a, axis=1), 48, 16))
    g.output(g.conv(e, 16, 2, 1), "mask", "B", 2, "H", "W")
    return g.save(folder)


def yolo(folder: Path) -> Path:
    """Heads of two scales: boxes around anchors in pixels, scores behind a Sigmoid."""
    g = Graph(27)
    x = g.input("x", FLOAT, "B", 3, 32, 32)
    a = g.silu(g.conv(x, 3, 32, stride=4))
    b = g.silu(g.conv(a, 32, 64, stride=2))
    found = []
    for y, channels, side in ((a, 32, 8), (b, 64, 4)):
        y = g.silu(g.conv(y, channels, channels))
        y = g.Reshape(g.conv(y, channels, 12, 1), g.ints(0, 12, side * side))
        found.append(g.Transpose(y, perm=[0, 2, 1]))
    y = g.Concat(*found, axis=1)
    box, scores = g.add("Split", y, g.ints(4, 8), outputs=2, axis=2)
    corners = [np.stack(np.meshgrid(*[np.arange(n) + 0.5] * 2), -1).reshape(-1, 2) * 32 / n for n in (8, 4)]
    anchors = np.tile(np.concatenate(corners), (1, 2))[None]
    g.output(g.Concat(g.Add(g.Mul(box, g.scalar(4.0)), g.const(anchors, np.float32)), g.Sigmoid(scores), axis=2),
             "boxes", "B", 80, 12)  # fmt: skip
    return g.save(folder)


def detr(folder: Path) -> Path:
    """A convolutional backbone, an encoder, learned queries that look at it, two heads."""
    g = Graph(28)
    x = g.Relu(g.conv(g.Relu(g.conv(g.input("x", FLOAT, "B", 3, 32, 32), 3, 32, stride=4)), 32, 64, stride=2))
    x = g.Add(g.Transpose(g.Reshape(x, g.ints(0, 0, -1)), perm=[0, 2, 1]), g.weight(1, 16, 64, fan_in=4))
    memory = g.block(x, 64, 4)
    queries = g.Expand(g.weight(1, 8, 64, fan_in=4), g.Concat(g.length(x, 0), g.ints(1, 1), axis=0))
    y = g.layer_norm(g.block(queries, 64, 4, None, memory), 64)
    g.output(g.linear(y, 64, 16), "classes", "B", 8, 16)
    g.output(g.Sigmoid(g.linear(g.Relu(g.linear(y, 64, 64)), 64, 4)), "boxes", "B", 8, 4)
    return g.save(folder)


def nhwc(folder: Path) -> Path:
    """As converters from TensorFlow write it: channels last outside, a Transpose around every convolution, Pad."""
    g = Graph(29)
    x = g.input("x", FLOAT, "B", "H", "W", 3)
    for i, o in ((3, 16), (16, 32), (32, 32)):
        y = g.Pad(g.Transpose(x, perm=[0, 3, 1, 2]), g.ints(0, 0, 1, 1, 0, 0, 1, 1))
        y = g.Transpose(g.conv(y, i, o, pads=[0] * 4), perm=[0, 2, 3, 1])
        x = g.Relu(g.Add(g.Mul(y, g.vector(o, 1.0)), g.vector(o)))
    g.output(g.linear(g.ReduceMean(x, axes=[1, 2], keepdims=0), 32, 16), "logits", "B", 16)
    return g.save(folder)


def group_norm(g: Graph, x: str, channels: int, groups: int = 4) -> str:
    flat = g.Reshape(x, g.ints(0, groups, -1))
    ones, zeros = g.const(np.ones(groups), np.float32), g.const(np.zeros(groups), np.float32)
    y = g.Reshape(g.InstanceNormalization(flat, ones, zeros), g.Shape(x))
    shape = (channels, 1, 1)
    gamma, beta = (g.const(m + 0.1 * g.rng.standard_normal(shape), np.float32) for m in (1.0, 0.0))
    return g.Add(g.Mul(y, gamma), beta)


def vae_decoder(folder: Path) -> Path:
    """Group norms, an attention over all pixels, Resize."""
    g = Graph(30)
    x = g.conv(start(g, 4), 4, 32)
    flat = g.Transpose(g.Reshape(group_norm(g, x, 32), g.ints(0, 0, -1)), perm=[0, 2, 1])
    y = g.Transpose(g.attention(flat, 32, 1), perm=[0, 2, 1])
    x = g.Add(x, g.Reshape(y, g.Shape(x)))
    for _ in range(2):
        y = g.conv(g.silu(group_norm(g, x, 32)), 32, 32)
        x = g.Add(x, g.conv(g.silu(group_norm(g, y, 32)), 32, 32))
    x = g.Resize(x, "", g.const([1, 1, 2, 2], np.float32), mode="linear")
    g.output(g.conv(g.silu(group_norm(g, x, 32)), 32, 3), "image", "B", 3, "H2", "W2")
    return g.save(folder)


def autoencoder(folder: Path) -> Path:
    """Convolutions down to a vector and back."""
    g = Graph(31)
    x = g.Relu(g.conv(g.input("x", FLOAT, "B", 3, 16, 16), 3, 16, stride=2))
    x = g.Relu(g.linear(g.Flatten(g.Relu(g.conv(x, 16, 32, stride=2))), 512, 64))
    x = g.Reshape(g.Relu(g.linear(x, 64, 512)), g.ints(0, 32, 4, 4))
    for i, o in ((32, 16), (16, 8)):
        w = g.weight(i, o, 2, 2, fan_in=i)
        x = g.Relu(g.ConvTranspose(x, w, g.vector(o), strides=[2, 2], kernel_shape=[2, 2]))
    g.output(g.conv(x, 8, 3), "image", "B", 3, 16, 16)
    return g.save(folder)


MODELS = {
    "resnet": Architecture(resnet, images(3), SIZES),
    "mobilenet-v2": Architecture(mobilenet_v2, images(3), SIZES),
    "mobilenet-v3": Architecture(mobilenet_v3, images(3), SIZES),
    "efficientnet": Architecture(efficientnet, images(3), SIZES),
    "convnext": Architecture(convnext, images(3), SIZES),
    "vit": Architecture(vit, images(3), ((2, 32), (1, 32), (5, 32))),
    "unet": Architecture(unet, images(3), SIZES),
    "yolo": Architecture(yolo, images(3), ((2, 32), (1, 32), (5, 32))),
    "detr": Architecture(detr, images(3), ((2, 32), (1, 32), (5, 32))),
    "nhwc": Architecture(nhwc, images(3, last=True), SIZES),
    "vae-decoder": Architecture(vae_decoder, images(4), ((2, 16), (1, 12), (3, 20))),
    "autoencoder": Architecture(autoencoder, images(3), ((2, 16), (1, 16), (5, 16))),
}
