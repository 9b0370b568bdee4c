"""Time by operator and by node, from that of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxq.report.document import Node, Operator
from onnxq.report.nodes import ON_CODES
from onnxq.runtime import known
from onnxq.runtime.kernel_times import Kernel


def by_operator(before: Sequence[Kernel], after: Sequence[Kernel]) -> list[Operator]:
    """Kernels of an operator together, those that take the most time first.

    Args:
        before, after: of the float and of the quantized model; one of them may be empty.
    """
    found: dict[str, Operator] = {}
    for kernel in before:
        row = found.setdefault(kernel.op, Operator(kernel.op))
        row.before += 1
        row.float_ms += 1e3 * kernel.seconds
    for kernel in after:
        row = found.setdefault(kernel.op, Operator(kernel.op))
        row.after += 1
        row.quantized_ms += 1e3 * kernel.seconds
    return sorted(found.values(), key=lambda row: -max(row.float_ms, row.quantized_ms))


def add_times(
    nodes: Sequence[Node], owners: Mapping[str, str], before: Sequence[Kernel], after: Sequence[Kernel]
) -> None:
    """Give nodes the time of their kernels. A kernel of several nodes has the name of one, or of what it makes.

    Args:
        owners: the node of a kernel, by the kernel's name.
    """
    for kernels, field in ((before, "float_ms"), (after, "quantized_ms")):
        times: dict[str, float] = {}
        for kernel in kernels:
            owner = owners.get(kernel.name, kernel.name)
            times[owner] = times.get(owner, 0.0) + 1e3 * kernel.seconds
        for node in nodes:
            if node.name in times:
                setattr(node, field, times[node.name])


def name_kernels(nodes: Sequence[Node], owners: Mapping[str, str], after: Sequence[Kernel]) -> None:
    """Say what the weights in the file do not tell: that integer kernels computed nodes without weights, and that
    products whose weights are codes ran in float."""
    ran: dict[str, set[str]] = {}
    for kernel in after:
        ran.setdefault(owners.get(kernel.name, kernel.name), set()).add(kernel.op)
    for node in nodes:
        ops = ran.get(node.name, set())
        is_on_codes = any(op.startswith(ON_CODES) for op in ops)
        if node.becomes == "float" and any(op.startswith("QLinear") for op in ops):
            node.becomes = "int8"
        elif (
            node.becomes == node.format
            and node.format.startswith(("int", "uint"))
            and not is_on_codes
            and ops & set(known.FLOAT_KERNELS.get(node.op, ()))
        ):
            node.becomes, node.reason = f"{node.format} stored", "computed in float: 'onnxq doctor' says why"
