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


def sums(wanted: Any, found: Any) -> tuple[int, int, float, float]:
    """How many numbers are compared, in how many places there was none and is something else now, and the sums of the
    squares of the numbers and of the errors: over a power of two where they would be infinite."""
    a, b = wanted.astype(np.float64), found.astype(np.float64)
    known, same = np.isfinite(a), (a == b) | (np.isnan(a) & np.isnan(b))
    others, a, b = int(np.count_nonzero(~known & ~same)), a[known], b[known]
    sizes = np.abs(np.concatenate([a, b]))
    by = 2.0 ** max(0, np.frexp(sizes.max(where=np.isfinite(sizes), initial=0.0))[1] - 465)
    a, b = a / by, b / by
    noise = float(np.sum((a - b) ** 2)) if np.isfinite(b).all() else float("inf")
    return a.size, others, float(np.sum(a**2)), noise


def main() -> int:
    manifest = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
    session, measured = open_session(manifest), manifest["measured"]
    print("inputs ", ", ".join(f"{x.name!r}: {x.type} {x.shape}" for x in session.get_inputs()))
    print("outputs", ", ".join(f"{x.name!r}: {x.type} {x.shape}" for x in session.get_outputs()))
    if measured is None:
        print("no samples are stored")
        return 0
    signal = noise = 0.0
    numbers = others = said = flips = 0
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
                more = sums(wanted, x)
                numbers, others, signal, noise = numbers + more[0], others + more[1], signal + more[2], noise + more[3]
    decibel = f"{10 * (np.log10(max(signal, 1e-300)) - np.log10(min(max(noise, 1e-300), 1e300))):.1f} dB"
    if noise == 0:
        decibel = "in all finite numbers" if others else "identical"
    words = [decibel] * (numbers > 0) + [f"{said - flips} of {said} decisions"] * (said > 0)
    words += [f"something else in {others} places that held NaN or infinity"] * (others > 0)
    agrees = ", ".join(words) or "in nothing, as no stored output holds a finite number,"
    print(f"agrees  {agrees} with {measured['machine']['cpu']}")
    print(f"time    {1e3 * seconds:.3f} ms; there {measured['milliseconds']:.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
