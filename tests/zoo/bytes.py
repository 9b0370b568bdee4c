"""Whether a change of the code changes the files that are written.

    python tests/zoo/bytes.py FOLDER --against CHECKOUT

Ten shared models are quantized in every scheme: first by the code of another checkout, which leaves hashes of the
files, the plans that were tuned and the times that decided in the folder; then by this one's, by the same times and by
the same plan. Without `--against` the first half is run before a change and the second after it, with the same folder.
What differs is listed by one of four words, and the exit status is 1.

* `plan`: by the same times another plan was tuned: the change is in planning, calibration or tuning.
* `bytes`: by the same plan another graph or other data were written: the change is in formats, passes or what writes.
* `metadata`: graph and data are the same, and what the file says of how it was made is not.
* `outcome`: something is done now that was not done before, or the other way round; or the tuner asks for times of
  kernels that it did not ask for.

Files name the version of onnxq and of onnxruntime: between two of those all metadata differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType

import onnx
from started import parser_for, start

import onnxq
from onnxq.plan import Plan, load_plan
from onnxq.runtime.profile import load_profile, new_profile
from onnxq.schemes import SCHEMES, STATIC_SCHEMES

#: Small ones of every kind: Conv, MatMul, LSTM, GRU with data beside it, If, a cache, float16, a local function.
MODELS = (
    "charrnn_shakespeare",
    "cifar_resnet20_functions",
    "gpt_nano_sort",
    "mlperf_ad_autoencoder",
    "mlperf_kws_dscnn",
    "nsnet2",
    "silero_vad",
    "squeezenet_fp16",
    "tiny-random-gpt2-fp32_past",
    "yunet_n_dynamic",
)
SAMPLES = 8
#: What is noted of a pair: the hash of the file by the same times, and by the same plan; of the latter that of graph
#: and data alone, too.
Noted = dict[str, str]


def hashes_of(path: Path) -> tuple[str, str]:
    """Of a model and the data beside it, which nothing else lies beside: of all bytes, and of graph and data alone."""
    model = onnx.load(path, load_external_data=False)
    del model.metadata_props[:]
    data = b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()) if file != path)
    found = (path.read_bytes(), model.SerializeToString(deterministic=True))
    whole, graph = (hashlib.blake2b(each + data, digest_size=16).hexdigest() for each in found)
    return whole, graph


def noted(zoo: ModuleType, name: str, scheme: str, folder: Path, scratch: Path) -> Noted:
    """Quantize a model by the times and the plan in `folder`, which are left there if they are not there yet."""
    data = (
        zoo.export_calibration(name, scratch / f"{name}.npz", SAMPLES) if scheme in ("auto", *STATIC_SCHEMES) else None
    )
    times, plan = (folder / f"{name}.{scheme}.{what}.json" for what in ("profile", "plan"))
    profile = load_profile(times) if times.exists() else new_profile()

    def written(by: Plan | None) -> tuple[str, str, Plan | None]:
        with tempfile.TemporaryDirectory(dir=scratch) as beside:
            output = Path(beside) / "out.onnx"
            try:
                recipe = onnxq.Recipe(scheme, effort="quick")
                result = onnxq.quantize(
                    zoo.model_path(name), output, recipe, data=data, profile=profile, plan=by, check=by is None
                )
            except onnxq.OnnxqError as error:
                return f"refused: {type(error).__name__}", "", None
            return ("copied", "", None) if result.copied else (*hashes_of(output), result.plan)

    tuned, _, found = written(None)
    if not profile.is_closed:
        times.write_text(profile.to_json(), encoding="utf-8")
        if found is not None:
            plan.write_text(found.to_json(), encoding="utf-8")
    planned, graph, _ = written(load_plan(plan)) if plan.exists() else ("", "", None)
    return {"tuned": tuned, "planned": planned, "graph": graph}


def difference(before: Noted, after: Noted) -> str:
    """Which of the four words it is; none if there is no difference."""
    if before == after:
        return ""
    if any(
        (" " in before[key] or before[key] == "copied") != (" " in after[key] or after[key] == "copied")
        for key in ("tuned", "planned")
    ):
        return "outcome"
    if before["planned"] == after["planned"]:
        return "plan"
    return "metadata" if before.get("graph") == after["graph"] else "bytes"


def note_by(checkout: Path, options: argparse.Namespace) -> None:
    """Let the code of another checkout write its files first.

    Raises:
        SystemExit: its package is not what Python finds there, or it could not be run.
    """
    search = os.pathsep.join([str(checkout.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": search}
    asked = [sys.executable, "-P", "-c", "import onnxq; print(onnxq.__file__)"]
    found = subprocess.run(asked, env=environment, capture_output=True, text=True).stdout.strip()
    if checkout.resolve() not in Path(found).resolve().parents:
        raise SystemExit(f"Python finds '{found}', not the package of '{checkout}': use no editable install")
    words = [str(options.folder), "--models", *options.models, "--schemes", *options.schemes]
    if subprocess.run([sys.executable, __file__, *words], env=environment).returncode:
        raise SystemExit(f"'{checkout}' could not be noted, or '{options.folder}' was noted by other code")


def main() -> int:
    parser = parser_for(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path, help="a checkout of other code, which goes first")
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES))
    options, zoo = start(parser)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.against is not None:
        note_by(options.against, options)
    path = options.folder / "hashes.json"
    known: dict[str, Noted] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    words: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.models:
            for scheme in options.schemes:
                key = f"{name} {scheme}"
                found = noted(zoo, name, scheme, options.folder, Path(scratch))
                word = (difference(known[key], found) or "the same") if key in known else "noted"
                known.setdefault(key, found)
                words[word] += 1
                print(f"{key}: {word}", flush=True)
                path.write_text(json.dumps(known, indent=1), encoding="utf-8")
    print(", ".join(f"{word}: {count} of {words.total()}" for word, count in words.items()))
    return bool(words.keys() - {"noted", "the same"})


if __name__ == "__main__":
    sys.exit(main())
