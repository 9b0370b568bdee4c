"""Whether an installed onnxq is whole: run anywhere, by the Python it was installed for.

1. The package is the installed one, not this checkout, and its compiled library lies inside it and loads.
2. Where there is onnxruntime (which must be there with --quantize): the command quantizes a model of this checkout,
   which computes the same with the library and in onnxruntime alone, close to the float model.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np

import onnxq

ROOT = Path(__file__).resolve().parents[1]
package = Path(onnxq.__file__).resolve().parent
assert ROOT not in package.parents or "site-packages" in package.parts, f"{package} is the checkout"
library = Path(onnxq.ops_library()).resolve()
assert library.parent == package, f"{library} is not inside {package}"
print(library)

if importlib.util.find_spec("onnxruntime") is None:
    sys.exit("no onnxruntime: nothing was quantized" if "--quantize" in sys.argv else 0)
import onnxruntime  # noqa: E402

model, samples = ROOT / "models" / "digits_cnn.onnx", ROOT / "models" / "digits_cnn_calibration.npz"
with np.load(samples) as arrays:
    (name,) = arrays
    feed = {name: arrays[name][:8].astype(np.float32)}
with tempfile.TemporaryDirectory() as folder:
    output = Path(folder) / "digits.onnx"
    command = Path(sysconfig.get_path("scripts")) / "onnxq"
    subprocess.run([command, "quantize", model, "-s", "w4a16", "-t", "onnxq", "-o", output], check=True)
    (wanted,) = onnxruntime.InferenceSession(model).run(None, feed)
    (alone,) = onnxruntime.InferenceSession(output).run(None, feed)
    (fast,) = onnxq.session(output).run(None, feed)
scale = np.abs(wanted).max()
assert np.abs(alone - wanted).max() < 0.2 * scale and np.abs(fast - alone).max() < 0.02 * scale
print("a quantized model runs, with the library and without")
