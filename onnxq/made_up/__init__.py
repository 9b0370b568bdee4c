"""Inputs made up for a model nobody gave data for: legal, of many kinds, through every branch; not what it is for.

What quantization does to a model on noise says little of what it does on speech. So there are several kinds of
content, judged one by one; several lengths, rows and pasts; steps that go on from the model's own outputs; and settings
of switches that take the other branch of an If. How many runs that takes does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxq.errors import amount
from onnxq.made_up.branches import Branch, Branches, in_words
from onnxq.made_up.maker import Made, Maker
from onnxq.runtime.session import Feed, Session
from onnxq.samples.trials import Trials

NOTHING = "no inputs: none could be made up that the model takes"


def make_up(model: ir.Model, session: Session, seed: int = 0) -> Trials:
    """Samples that `session` runs; none if no guess at the free dimensions makes it run.

    Args:
        model: what the session runs, or the same model prepared.
    """
    maker = Maker(model, session, seed)
    first = maker.first()
    if first is None:
        return Trials(words=NOTHING)
    made = [*maker.kinds(first), *maker.lengths(first), *maker.steps(first)]
    branches = Branches(model)
    missing = branches.all - branches.taken([each.feed for each in made]) if branches.all else frozenset()
    more, missing = _through(missing, branches, maker, maker.settings(first))
    trials = tuple(each.trial for each in [*made, *more])
    if not trials:  # it gives no finite numbers on any
        return Trials(words=NOTHING, notes=tuple(_dropped(maker)))
    further = tuple(each.trial for each in maker.pairs(first, [*made, *more]))
    count = len({trial.label for trial in trials})
    kinds = f" of {count} kinds" if count > 1 else ""
    words = f"{amount(len(trials), 'made-up input')}{kinds}{_shapes(trials[0].feed)}: no data was given"
    return Trials(trials, words, notes=(*_never_run(missing), *_dropped(maker)), further=further)


def make_up_missing(model: ir.Model, session: Session, given: Sequence[Feed], seed: int = 0) -> Trials:
    """Samples for those branches of Ifs that `given` never takes; none for a model without Ifs."""
    branches = Branches(model)
    missing = branches.all - branches.taken(given) if branches.all else frozenset()
    if not missing:
        return Trials()
    maker = Maker(model, session, seed)
    first = maker.first()
    if first is None:
        return Trials(notes=tuple(_never_run(missing)))
    usual = [*maker.run("", first), *maker.steps(first)]
    tried = [usual, *maker.settings(first)]
    found, left = _through(missing, branches, maker, tried)
    notes = list(_never_run(left))
    if missing - left:
        notes.insert(0, f"the data never take {in_words(missing - left)}: made-up inputs do, and are judged too")
    return Trials(
        tuple(each.relabelled(f"made up: {each.trial.label}".rstrip(": ")).trial for each in found), notes=tuple(notes)
    )


def _through(
    missing: frozenset[Branch], branches: Branches, maker: Maker, tried: Iterable[list[Made]]
) -> tuple[list[Made], frozenset[Branch]]:
    """Those of the groups in `tried` that take branches which are `missing`, and what is missing still."""
    found: list[Made] = []
    if missing:
        for group in tried:
            new = missing & branches.taken([each.feed for each in group])
            if new:
                found += group
                missing -= new
            if not missing:
                break
    return found, missing


def _never_run(missing: frozenset[Branch]) -> Iterable[str]:
    if missing:
        them = "them" if len(missing) > 1 else "it"
        yield f"never run, as no input was found that takes {them}: {in_words(missing)}; give data that take {them}"


def _dropped(maker: Maker) -> Iterable[str]:
    if maker.dropped:
        yield f"the float model gives no finite numbers on {', '.join(maker.dropped)}: not compared on it"


def _shapes(feed: Feed) -> str:
    """The shapes of a sample, in brackets, as long as there are few."""
    shapes = [f"{name} {list(x.shape)}" for name, x in feed.items()]
    return f" ({', '.join(shapes)})" if 0 < len(shapes) <= 3 else ""
