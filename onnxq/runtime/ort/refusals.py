"""Whether a model is one at all, in the words of onnxruntime or onnx: that something of ours fails on one that they
refuse, too, is no bug."""

from __future__ import annotations

from pathlib import Path

from onnxq.errors import BadModel, first_line, one_line
from onnxq.files import data_files
from onnxq.runtime.session import Session

#: Bytes of a model, with its data, up to which it is opened only to know that.
MOST = 1 << 30
#: What it refuses legal models with: operators of others, versions that it does not know, kernels that it lacks, words
#: of ours.
_ITS_OWN = (
    *("not a registered function/op", "No Op registered", "Unsupported model IR", "opset", "NOT_IMPLEMENTED"),
    *("Could not find an implementation", "cannot load the library", "memory"),
)


def why_refused(path: Path) -> str:
    """Why onnxruntime does not take the model in a file, or onnx where onnxruntime lacks what it needs; "" if the model
    is a legal one, the file is none, or it is too large to be tried."""
    if not data_files.is_model(path):
        return ""
    files = [path, *(path.parent / name for name in data_files.locations(path))]
    if sum(file.stat().st_size for file in files if file.is_file()) > MOST:
        return ""
    try:
        Session(path, optimize=False)
    except BadModel as error:
        text = str(error)
        return _why_illegal(path) if any(word in text for word in _ITS_OWN) else text
    return ""


def _why_illegal(path: Path) -> str:
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # of its own, of protobuf, of files
        return one_line(f"onnx refuses the model: {first_line(error)}")
    return ""
