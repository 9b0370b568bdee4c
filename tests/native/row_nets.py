"""Networks of rows: normalizations, Softmax, products of two tensors, sums, attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from islands import Net


@dataclass
class Rows(Net):
    """A net of stacks of matrices, whose scales are no powers of two where a step rounds float32."""

    def normal(self, shape: tuple[int, ...]) -> str:
        return self.constant(self.rng.normal(size=shape).astype(np.float32))

    def made(self, y: str, like: str) -> str:
        self.shapes[y] = self.shapes[like]
        return y

    def norm(self, x: str, kind: str = "LayerNormalization") -> str:
        size = self.shapes[x][-1]
        vectors = [self.normal((size,)), *([self.normal((size,))] if kind == "LayerNormalization" else [])]
        if kind != "spelled":
            return self.made(self.node(kind, [x, *vectors], axis=-1, epsilon=1e-3), x)
        axes = self.constant(np.array([-1], np.int64))
        centred = self.node("Sub", [x, self.node("ReduceMean", [x, axes], keepdims=1)])
        square = self.node("Pow", [centred, self.constant(np.float32(2))])
        mean = self.node("Add", [self.node("ReduceMean", [square, axes], keepdims=1), self.constant(np.float32(1e-3))])
        made = self.node("Div", [centred, self.node("Sqrt", [mean])])
        return self.made(self.node("Add", [self.node("Mul", [vectors[0], made]), self.normal((size,))]), x)

    def softmax(self, x: str) -> str:
        return self.made(self.node("Softmax", [x], axis=-1), x)

    def plus(self, a: str, b: str) -> str:
        return self.made(self.node("Add", [a, b]), a)

    def codes(self, value: str, scale: float = 0.037) -> str:
        return self.quantized(value, scale, 131)

    def heads(self, x: str, heads: int, axes: tuple[int, ...] = (0, 2, 1, 3)) -> str:
        width = self.shapes.get(x, (heads,))[-1]
        shape = self.constant(np.array([0, 0, heads, width // heads], np.int64))
        return self.node("Transpose", [self.node("Reshape", [x, shape])], perm=list(axes))

    def attention(self, x: str, heads: int, mask: str = "", value_size: int = 0) -> str:
        """Projections of x, and what `weigh_in_codes` writes of their attention."""
        size = self.shapes[x][-1] // heads
        q, k = (self.codes(self.matmul(x, heads * size)) for _ in range(2))
        v = self.codes(self.matmul(x, heads * (value_size or size)), 0.051)
        scores = self.node("MatMul", [self.heads(q, heads), self.heads(k, heads, (0, 2, 3, 1))])
        scores = self.node("Mul", [scores, self.constant(np.float32(0.02))])
        if mask:
            scores = self.node("Add", [scores, mask])
        weights = self.node("Softmax", [scores], axis=-1)
        largest = self.node("ReduceMax", [weights, self.constant(np.array([-1], np.int64))], keepdims=1)
        given = [self.constant(np.float32(1) / np.float32(255)), self.constant(np.uint8(0))]
        codes = self.node("QuantizeLinear", [self.node("Div", [weights, largest]), *given])
        product = self.node("MatMul", [self.node("DequantizeLinear", [codes, *given]), self.heads(v, heads)])
        turned = self.node("Transpose", [self.node("Mul", [product, largest])], perm=[0, 2, 1, 3])
        y = self.node("Reshape", [turned, self.constant(np.array([0, 0, heads * (value_size or size)], np.int64))])
        self.shapes[y] = (*self.shapes[x][:-1], heads * (value_size or size))
        return self.codes(y, 0.023)


def block(net: Rows, x: str, heads: int) -> str:
    size = net.shapes[x][-1]
    a = net.norm(net.plus(net.matmul(net.attention(x, heads), size), x))
    hidden = net.codes(net.matmul(net.codes(a), 2 * size))
    b = net.matmul(net.codes(net.made(net.node("Gelu", [hidden]), hidden), 0.05), size)
    return net.norm(net.plus(a, b))
