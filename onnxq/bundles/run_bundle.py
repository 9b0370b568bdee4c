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


def main() -> int:
    manifest = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
    session, measured = open_session(manifest), manifest["measured"]
    print("inputs ", ", ".join(f"{x.name!r}: {x.type} {x.shape}" for x in session.get_inputs()))
    print("outputs", ", ".join(f"{x.name!r}: {x.type} {x.shape}" for x in session.get_outputs()))
    if measured is None:
        print("no samples are stored")
        return 0
    signal = noise = 0.0
    numbers = said = flips = 0
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
                known = np.isfinite(wanted := wanted.astype(np.float64))
                numbers += int(np.count_nonzero(known))
                signal += float(np.sum(wanted[known] ** 2))
                noise += float(np.sum((wanted - x)[known] ** 2)) if np.isfinite(x[known]).all() else float("inf")
    decibel = "identical" if noise == 0 else f"{10 * np.log10(max(signal, 1e-300) / min(noise, 1e300)):.1f} dB"
    words = [decibel] * (numbers > 0) + [f"{said - flips} of {said} decisions"] * (said > 0)
    agrees = ", ".join(words) or "in nothing, as no stored output holds a finite number,"
    print(f"agrees  {agrees} with {measured['machine']['cpu']}")
    print(f"time    {1e3 * seconds:.3f} ms; there {measured['milliseconds']:.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
