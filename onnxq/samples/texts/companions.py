"""What lies beside a model: tokenizer, settings of its processor, encoder; and the tables that its ids look up."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.boundary import warn
from onnxq.errors import BadModel
from onnxq.files import guard
from onnxq.model import graph
from onnxq.model.load import load_model
from onnxq.runtime.session import Session
from onnxq.samples.texts import tokenizer

PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_ENCODERS = ("encoder_model.onnx", "encoder.onnx")
#: Operators that pass ids on to the table that looks them up.
_ONLY_SHAPE = ("Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Transpose", "Slice", "Expand")


@dataclass
class Companions:
    """The model that samples are for, and the folder it lies in.

    Attributes:
        model: in memory; None: only its inputs are known.
        path: its file; None: nothing lies beside it.
        told: files beside it that are used, of which a line was said.
    """

    model: ir.Model | None = None
    path: Path | None = None
    told: set[Path] = field(default_factory=set)

    def beside(self, *names: str) -> Path | None:
        """The first of the files `names` in the model's folder, or in the one above if that is a folder of parts."""
        if self.path is None:
            return None
        folder = self.path.absolute().parent
        above = [folder.parent] if folder.name == "onnx" else []
        files = (each / name for each in (folder, *above) for name in names)
        file = next((file for file in files if file.is_file()), None)
        if file is not None:
            guard.remember([file])
        return file

    def found(self, what: str, *names: str) -> Path | None:
        """As `beside`; that the file is used for lack of another is said once."""
        file = self.beside(*names)
        if file is not None and file not in self.told:
            self.told.add(file)
            warn(f"{what} as {file} says, which lies beside the model")
        return file

    def used(self) -> str:
        """A hash of the files beside the model that decide what samples look like."""
        digest = hashlib.sha256()
        encoder = self.beside(*_ENCODERS) if "encoder" in vars(self) else None
        around = [file.with_name(tokenizer.CONFIG) for file in self.told if file.name == tokenizer.FILE]
        found = [*self.told, *around, self.beside("config.json"), encoder]
        for file in sorted({file for file in found if file is not None and file.is_file()}):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """What the model's config.json says; nothing if there is none."""
        file = self.beside("config.json")
        return {} if file is None else tokenizer.read_json(file)

    @property
    def positions(self) -> int | None:
        """How many tokens the model has places for, if its config.json says so."""
        found = [self.config.get(key) for key in ("max_position_embeddings", "n_positions")]
        limit = next((number for number in found if isinstance(number, int) and number > 2), None)
        is_shifted = "roberta" in str(self.config.get("model_type"))  # whose places begin behind that of the padding
        return limit - 2 if limit is not None and is_shifted else limit

    @functools.cached_property
    def session(self) -> Session:
        """Runs the float model: the user's own file, or the prepared one where the runtime has no kernels for that."""
        try:
            if self.path is not None:
                return Session(self.path, threads=0)
        except BadModel:
            if self.model is None:
                raise
        assert self.model is not None, "whoever asks for a run has given a model"
        return Session(self.model, threads=0)

    @functools.cached_property
    def encoder(self) -> Session | None:
        """Of an encoder-decoder pair in two files, the encoder.

        Raises:
            BadModel: it cannot be read, or is not one to be opened.
        """
        file = self.beside(*_ENCODERS)
        if file is None or file == self.path:
            return None
        load_model(file)  # refuses what onnxruntime would open: tensors that lie outside of the folder
        return Session(file, threads=0)

    def rows(self, name: str) -> int | None:
        """Rows of the smallest table that the input `name` looks up, directly or through shape-only operators."""
        pending = [] if self.model is None else [value for value in self.model.graph.inputs if value.name == name]
        rows: list[int] = []
        seen: set[int] = set()
        while pending:
            value = pending.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            for use in value.uses():
                table = graph.constant(use.node.inputs[0]) if use.node.inputs else None
                if use.node.op_type == "Gather" and use.idx == 1 and table is not None:
                    rows.append(table.shape.numpy()[graph.attribute_int(use.node, "axis", 0)])
                elif use.node.op_type == "EmbedLayerNormalization" and use.idx == 0:
                    words = graph.constant(use.node.inputs[2])
                    rows += [] if words is None else [words.shape.numpy()[0]]
                elif use.node.op_type in _ONLY_SHAPE and use.idx == 0:
                    pending += use.node.outputs
        return min(rows, default=None)
