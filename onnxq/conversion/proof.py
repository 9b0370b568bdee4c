"""Compare what was written with the quantized model that it was made of, by running both."""

from __future__ import annotations

import functools
from pathlib import Path

import onnx_ir as ir

from onnxq.checking.models import Check, check_models
from onnxq.checking.spelled import new_types
from onnxq.conversion.restore import restore_all
from onnxq.job import WHOLE_MODEL_BYTES, Environment
from onnxq.made_up import make_up
from onnxq.made_up.scout import scout
from onnxq.model.load import load_model
from onnxq.output import write
from onnxq.runtime.ort.installed import version
from onnxq.runtime.session import Session


def prove(model: Path, restored: ir.Model, staged: Path, environment: Environment) -> Check | None:
    """What the written model computes against the quantized one, on made-up inputs; None for a model that is too large.

    Args:
        model: the quantized one; where onnxruntime has no kernels for its types, what is run is the same in floats.
        restored: the same with float weights, of which inputs are made up that it takes.
        staged: the written one.

    Raises:
        CheckFailed: it does not load, does not run, or has other outputs.
    """
    environment.progress.start("checking the saved file")
    if write.nbytes_to_write(restored) > WHOLE_MODEL_BYTES:
        return None
    trials = make_up(restored, scout(restored))
    check = functools.partial(check_models, quantized=staged, trials=trials, threads=environment.threads)
    missing = new_types(model)
    if not missing:
        return check(Session(model, threads=environment.threads))
    in_floats = load_model(model)
    restore_all(in_floats)
    return check(Session(in_floats, threads=environment.threads)).noting(
        f"onnxruntime {version()} has no kernels for {missing}: what was run beside it is the same model in floats"
    )
