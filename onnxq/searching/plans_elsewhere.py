"""Plans measured by a cluster's workers, several at a time: each is a task of its model, its samples and its weights.

This process carries plans out and packs nothing; each weight is packed in each form by a task of its own
(`output/model_elsewhere.py`), as when a model is written.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence

import msgspec
import onnx_ir as ir

from onnxq import cluster
from onnxq.cluster import Engine, Task
from onnxq.cluster import tasks as worker
from onnxq.errors import BadRecipe
from onnxq.files import limits
from onnxq.output.model_elsewhere import Sender, received
from onnxq.output.packed_elsewhere import pack_elsewhere
from onnxq.plan import Plan
from onnxq.runtime import native
from onnxq.runtime.session import Session
from onnxq.searching.meter import Figures
from onnxq.tuning.plan_bench import PlanBench, Rewrite

#: Counted seconds of a plan (`PlanBench.cost`) below which workers on this machine take longer to be started.
LEAST_SECONDS = 0.2


def is_worth_it(engine: Engine, bench: PlanBench) -> bool:
    """Whether an engine's workers measure plans faster than this process, which may have the same cores."""
    return not engine.is_here or bench.cost >= LEAST_SECONDS


def packing_elsewhere(engine: Engine, rewrite: Rewrite) -> Rewrite:
    """As `rewrite`, with weights that an engine's workers pack: for models that this process runs or writes itself."""

    def rewritten(plan: Plan) -> ir.Model:
        model = rewrite(plan)
        pack_elsewhere(engine, model)
        return model

    return rewritten


class PlansElsewhere:
    """Measures plans on an engine's workers, as `bench` would here; what it still runs here is packed there.

    Raises:
        OnnxqError: there are no workers.
    """

    def __init__(self, engine: Engine, bench: PlanBench) -> None:
        engine.begin()  # which says so, before it is said what is measured
        self._engine, self._bench, self._sender = engine, bench, Sender(engine)
        self._rewrite, bench.rewrite = bench.rewrite, packing_elsewhere(engine, bench.rewrite)

    def figures(self, plans: Sequence[Plan]) -> Iterator[Figures]:
        """Of each plan, in their order.

        Raises:
            OnnxqError: what a worker raised, or why there is none any more.
        """
        watched = self._bench.watched
        name = cluster.named(cluster.as_given, watched.digest)
        samples = Task(cluster.as_given, lambda: (pickle.dumps(watched),), name, "the samples", is_kept=False)
        tasks = (self._task(plan, samples, f"plan {i} of {len(plans)}") for i, plan in enumerate(plans, 1))
        return cluster.results(self._engine, tasks)

    def _task(self, plan: Plan, samples: Task, what: str) -> Task:
        sent = self._sender.sent(self._rewrite(plan))
        has_library = native.path() is not None
        name = cluster.named(figures_of, [sent.name, samples.name, has_library])
        return Task(figures_of, (sent.message, has_library), name, what, needs=(samples, *sent.needs), read=_read)


def figures_of(message: bytes, has_library: bool, needed: tuple[bytes, ...]) -> bytes:
    """On a worker: the figures of a plan.

    Args:
        has_library: whether the process that asks computes our operators by the compiled library.
        needed: the samples, and the model's weights.

    Raises:
        BadRecipe: this process computes them in another way.
        BadModel: the model cannot be run.
    """
    if has_library != (native.path() is not None):
        lacks = "a worker lacks the compiled library of onnxq" if has_library else "a worker has a compiled library"
        here = "which this machine has" if has_library else "which this machine lacks"
        raise BadRecipe(f"{lacks}, {here}: plans would be measured differently; install the same on both")
    samples, *weights = needed
    watched = pickle.loads(samples)  # of whoever sent this task
    found = Figures.of(watched.quality(Session(received(message, weights), threads=worker.threads())))
    return json.dumps([None if x is None else float(x).hex() for x in msgspec.structs.astuple(found)]).encode()


def _read(result: bytes, who: str) -> Figures:
    """What `figures_of` wrote."""
    try:
        harm, sqnr, *rest = limits.parse_json(result.decode())
        kld, flips = (None if x is None else float.fromhex(x) for x in rest)
        found = Figures(float.fromhex(harm), float.fromhex(sqnr), kld, flips)
    except (ValueError, TypeError, OverflowError):
        raise cluster.unlike("figures of a plan", who) from None
    if not found.are_believable:
        raise cluster.unlike("figures of a plan", who)
    return found
