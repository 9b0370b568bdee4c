"""Attack every command with spoiled inputs for a while, and tell what did harm, each cause once, as small as it goes.

    python tests/attack/fuzz.py --minutes 10 --seed 1

The exit code is 1 if there was any. `--case` runs one again, as the report spells it.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import random
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from attack import cage, mutants  # noqa: E402
from attack.mutants import Mutant  # noqa: E402

from onnxq import boundary  # noqa: E402
from onnxq.model import load  # noqa: E402, F401  # which knows whom to ask

#: Cases that are printed of those that crashed.
SHOWN = 8


def smaller(case: Mutant, cause: str) -> Mutant:
    """The case with as few mutations as do the same harm."""
    for seed in case.seeds:
        less = dataclasses.replace(case, seeds=tuple(s for s in case.seeds if s != seed))
        if less.seeds and next(cage.run([less])).cause == cause:
            case = less
    return case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kind", action="append", choices=list(mutants.KINDS))
    parser.add_argument("--case", help="the arguments of one Mutant, as reported")
    parser.add_argument("--strict", action="store_true", help="failures on models that others refuse, too")
    options = parser.parse_args()
    if options.strict:
        boundary.judges.clear()
    if options.case:
        outcome = next(cage.run([Mutant(*ast.literal_eval(options.case))]))
        print(f"{outcome.defect or 'fine'} ({outcome.code}): {outcome.cause}\n{outcome.said}")
        return bool(outcome.defect)
    r = random.Random(options.seed)
    end = time.monotonic() + 60 * options.minutes
    found: dict[str, tuple[int, Mutant, cage.Outcome]] = {}
    codes: dict[int, int] = {}
    crashes: list[Mutant] = []
    count, slowest = 0, (0.0, "")
    while time.monotonic() < end:
        cases = [mutants.draw(r, options.kind) for _ in range(cage.BATCH)]
        for case, outcome in zip(cases, cage.run(cases), strict=True):
            count += 1
            # Or was it others, on a busy machine or one without memory?
            if outcome.defect == "hang" or outcome.code == -signal.SIGKILL:
                outcome = next(cage.run([case], seconds=3 * cage.SECONDS))
            codes[outcome.code] = codes.get(outcome.code, 0) + 1
            crashes += [case] if outcome.code < 0 else []
            slowest = max(slowest, (outcome.seconds, str(dataclasses.astuple(case))))
            if outcome.defect:
                key = f"{outcome.defect}: {outcome.cause}"
                before, first, said = found.get(key, (0, case, outcome))
                if not before:
                    print(f'after {count} cases: {key}\n  --case "{dataclasses.astuple(case)}"', flush=True)
                found[key] = (before + 1, first, said)
            if time.monotonic() >= end:
                break
    print(f"seed {options.seed}: {count} cases, exit codes {dict(sorted(codes.items()))}, slowest {slowest[0]:.1f} s")
    print(f'  --case "{slowest[1]}"')
    for key, (times, case, outcome) in sorted(found.items(), key=lambda item: -item[1][0]):
        least = smaller(case, outcome.cause)
        print(f'\n{times} × {key}\n  --case "{dataclasses.astuple(least)}"\n' + outcome.said[-1500:])
    print(f"\n{len(found)} distinct causes; {len(crashes)} cases crashed, some in onnxruntime")
    for case in crashes[:SHOWN]:
        print(f'  --case "{dataclasses.astuple(case)}"')
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
