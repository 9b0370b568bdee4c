"""Whether a change of the code changes the files that are written: `python tests/zoo/bytes.py FOLDER [--models …]`.

Run it before the change with a folder that is not there: ten shared models are quantized in every scheme, and hashes of
the files, the plans that were tuned and the times that decided are left in the folder. Run it again after the change
with the same folder: each model is quantized by the same times, and by the same plan. What differs is listed by one of
three words, and the exit status is 1.

* `plan`: by the same times another plan was tuned: the change is in planning, calibration or tuning.
* `bytes`: by the same plan another file was written: the change is in formats, passes or what writes.
* `outcome`: something is done now that was not done before, or the other way round; or the tuner asks for times of
  kernels that it did not ask for.

Files name the version of onnxq and of onnxruntime: between two of those everything differs.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from started import parser_for, start

import onnxq
from onnxq.files.data_files import own_data
from onnxq.plan import Plan, load_plan
from onnxq.runtime.profile import load_profile, new_profile
from onnxq.schemes import SCHEMES

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
#: What is noted of a pair: the hash of the file by the same times, and by the same plan.
Noted = dict[str, str]


def hash_of(path: Path) -> str:
    """Of a model and the data that are written with it."""
    found = hashlib.blake2b(digest_size=16)
    for file in (path, *own_data(path)):
        found.update(file.read_bytes())
    return found.hexdigest()


def noted(zoo: ModuleType, name: str, scheme: str, folder: Path, scratch: Path) -> Noted:
    """Quantize a model by the times and the plan in `folder`, which are left there if they are not there yet."""
    data = zoo.export_calibration(name, scratch / f"{name}.npz", SAMPLES) if scheme in ("auto", "w8a8") else None
    times, plan = (folder / f"{name}.{scheme}.{what}.json" for what in ("profile", "plan"))
    output, recipe = scratch / f"{name}.{scheme}.onnx", onnxq.Recipe(scheme, effort="quick")
    profile = load_profile(times) if times.exists() else new_profile()

    def written(by: Plan | None) -> tuple[str, Plan | None]:
        try:
            result = onnxq.quantize(
                zoo.model_path(name), output, recipe, data=data, profile=profile, plan=by, check=by is None, force=True
            )
        except onnxq.OnnxqError as error:
            return f"refused: {type(error).__name__}", None
        return ("copied", None) if result.copied else (hash_of(output), result.plan)

    tuned, found = written(None)
    if not profile.is_closed:
        times.write_text(profile.to_json(), encoding="utf-8")
        if found is not None:
            plan.write_text(found.to_json(), encoding="utf-8")
    return {"tuned": tuned, "planned": written(load_plan(plan))[0] if plan.exists() else ""}


def difference(before: Noted, after: Noted) -> str:
    """Which of the three words it is; none if there is no difference."""
    if before == after:
        return ""
    if any(
        (" " in a or a == "copied") != (" " in b or b == "copied")
        for a, b in zip(before.values(), after.values(), strict=True)
    ):
        return "outcome"
    return "plan" if before["planned"] == after["planned"] else "bytes"


def main() -> int:
    parser = parser_for(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES))
    options, zoo = start(parser)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "hashes.json"
    known: dict[str, Noted] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    differences = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.models:
            for scheme in options.schemes:
                key = f"{name} {scheme}"
                found = noted(zoo, name, scheme, options.folder, Path(scratch))
                word = difference(known[key], found) if key in known else "noted"
                differences += key in known and bool(word)
                known.setdefault(key, found)
                print(f"{key}: {word or 'the same'}", flush=True)
                path.write_text(json.dumps(known, indent=1), encoding="utf-8")
    print(f"{differences} differences")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
