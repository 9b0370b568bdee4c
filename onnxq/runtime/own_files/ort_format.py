"""Models in onnxruntime's own format, `.ort`: an optimized graph, loaded as it is, also by builds of few operators.

Source: onnxruntime's `tools/python/util/convert_onnx_models_to_ort.py`.
"""

from __future__ import annotations

from pathlib import Path

from onnxq.errors import BadModel
from onnxq.runtime import native
from onnxq.runtime.ort.installed import reason, require
from onnxq.runtime.own_files import model_files

#: Of such a file: its offsets have 32 bits, with a sign.
MOST_BYTES = (1 << 31) - 1
#: Bytes that tell whether a disk takes more.
_ROOM = 1 << 20
#: Whose result holds for processors with vectors of one length only.
_OF_ONE_PROCESSOR = ["NchwcTransformer"]


def save_as_ort(model: Path, output: Path, *, library: bool) -> None:
    """Write the model at `model`, optimized for any processor, to `output`.

    Args:
        library: keep operators of the onnxq domain as they are, to be computed by the compiled library; else the
            functions that the model carries take their place.

    Raises:
        BadModel: onnxruntime refuses the model, or cannot write it.
        OSError: the disk takes no more.
    """
    ort = require()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(output)
    options.add_session_config_entry("session.save_model_format", "ORT")
    if library:
        options.register_custom_ops_library(str(native.path()))
    try:
        ort.InferenceSession(
            model_files.source_of(model, options),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_OF_ONE_PROCESSOR,
        )
    except Exception as error:  # onnxruntime's exceptions share no base class
        if output.exists():  # a part of it: the system says what onnxruntime does not
            with output.open("ab") as file:
                file.write(bytes(_ROOM))
        raise BadModel(f"onnxruntime cannot write '{model}' as .ort: {reason(error)}") from None
