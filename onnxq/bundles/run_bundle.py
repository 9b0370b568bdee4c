"""Runs the model of this folder on the samples that lie here, with onnxruntime and numpy alone: `python run.py`.

It prints how long a run takes, and how near the outputs are to those of the machine that made the bundle. Whether all
files are as they were made is said by `sha256sum --check SHA256SUMS`, and more by `onnxq verify`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
#: Rules of onnxruntime's optimizer that would change what this model computes.
WRONG_RULES = ""


def open_session(manifest: dict[str, Any]) -> Any:
    """The model, with the compiled library if there is one."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # nobody is told of the model, unless you want that
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = (manifest["measured"] or {}).get("threads", 1)
    if WRONG_RULES:
        options.add_session_config_entry("optimization.disable_specified_optimizers", WRONG_RULES)
    if manifest["library"]:
        options.register_custom_ops_library(str(HERE / manifest["library"]))
    return onnxruntime.InferenceSession(str(HERE / manifest["model"]), options, providers=["CPUExecutionProvider"])


def add_squares(sums: dict[int, list[float]], wanted: Any, found: Any) -> int:
    """Add the squares of the numbers and of the errors to those of usual numbers (0), of huge ones, over two to the
    power of 600, and of tiny ones, over that of -600, whose squares would be infinite or 0; in how many places there
    was no number and is something else now."""
    a, b = wanted.astype(np.float64), found.astype(np.float64)
    known, same = np.isfinite(a), (a == b) | (np.isnan(a) & np.isnan(b))
    others, a, b = int(np.count_nonzero(~known & ~same)), a[known], b[known]
    larger = np.maximum(np.abs(a), np.abs(np.where(np.isfinite(b), b, 0.0)))
    is_huge, is_tiny = larger >= 2.0**465, (larger > 0) & (larger < 2.0**-400)
    for by, places in ((0, ~(is_huge | is_tiny)), (600, is_huge), (-600, is_tiny)):
        if places.any():
            x, y = np.ldexp(a[places], -by), np.ldexp(b[places], -by)
            signal, noise = sums.get(by, (0.0, 0.0))
            more = float(np.sum((x - y) ** 2)) if np.isfinite(y).all() else float("inf")
            sums[by] = [signal + float(np.sum(x**2)), noise + more]
    return others


def agreement(sums: dict[int, list[float]]) -> str:
    """Of the numbers that agree the least, in dB; beside others, tiny ones are silence, but not identical."""
    is_heard = any(signal for by, (signal, _) in sums.items() if by >= 0)
    found = []
    for by, (signal, noise) in sums.items():
        signal = 1e300 if by < 0 and is_heard else max(signal, 1e-300)
        if noise:
            found.append(10 * (np.log10(signal) - np.log10(min(max(noise, 1e-300), 1e300))))
    return f"{min(found):.1f} dB" if found else ""


def main() -> int:
    manifest = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
    session, measured = open_session(manifest), manifest["measured"]
    print("inputs ", ", ".join(f"{x.name!r}: {x.type} {x.shape}" for x in session.get_inputs()))
    print("outputs", ", ".join(f"{x.name!r}: {x.type} {x.shape}" for x in session.get_outputs()))
    if measured is None:
        print("no samples are stored")
        return 0
    sums: dict[int, list[float]] = {}
    others = said = flips = 0
    names, seconds = measured["outputs"], float("inf")
    with np.load(HERE / "samples.npz") as stored:
        for i in range(measured["samples"]):
            inputs = [(x.name, f"in.{i}.{j}") for j, x in enumerate(session.get_inputs())]
            feed = {name: stored[key] for name, key in inputs if key in stored}
            for _ in range(5):
                start = time.perf_counter()
                found = session.run(names, feed)
                seconds = min(seconds, time.perf_counter() - start) if i == 0 else seconds
            for j, x in enumerate(found):
                wanted = stored[f"out.{i}.{j}"]
                if wanted.shape != x.shape:
                    print(f"agrees  in nothing: {names[j]!r} has shape {x.shape} here, and had {wanted.shape}")
                    return 1
                if wanted.dtype.kind in "iub":  # labels, places: right or wrong, however far away
                    said, flips = said + wanted.size, flips + int(np.count_nonzero(wanted != x))
                    continue
                others += add_squares(sums, wanted, x)
    decibel = agreement(sums) or ("in all finite numbers" if others else "identical")
    words = [decibel] * bool(sums) + [f"{said - flips} of {said} decisions"] * (said > 0)
    words += [f"something else in {others} places that held NaN or infinity"] * (others > 0)
    agrees = ", ".join(words) or "in nothing, as no stored output holds a finite number,"
    print(f"agrees  {agrees} with {measured['machine']['cpu']}")
    print(f"time    {1e3 * seconds:.3f} ms; there {measured['milliseconds']:.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
