"""What training takes, measured on one sample before it starts."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from onnxq.errors import OutOfMemory
from onnxq.training.batches import Batch, Samples
from onnxq.training.loop import LossOf
from onnxq.training.settings import Settings
from onnxq.training.student import Student

#: A gradient, and two means of Adam's, for each number that learns; and its best and its first value.
_COPIES = 5


def estimate(student: Student, samples: Samples, settings: Settings, loss_of: LossOf) -> int:
    """Bytes at the peak: parameters of both models with what the optimizer keeps, samples, and the values that a batch
    keeps for gradients."""
    every = [*student.module.parameters(), *student.module.buffers()]
    fixed = sum(x.numel() * x.element_size() for x in every)
    fixed += sum(x.numel() * x.element_size() for x in student.module.weights.values())  # the teacher's
    learned = sum(x.numel() * x.element_size() for x in student.module.parameters() if x.requires_grad)
    batch = samples.batch(samples.train[:1])[0]
    rows = min(settings.batch, len(samples.train)) if samples.joined else 1
    return fixed + _COPIES * learned + samples.nbytes() + rows * _kept(student, loss_of, batch)


def _kept(student: Student, loss_of: LossOf, batch: Batch) -> int:
    """Bytes of what is kept for the gradients of one sample; parameters that are kept are there anyway."""
    known = {x.data_ptr() for x in (*student.module.parameters(), *student.module.buffers())}
    seen: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        if x.layout is not torch.strided:  # of a loss of the user's own
            return x
        storage = x.untyped_storage()
        if x.data_ptr() not in known:
            seen[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = loss_of(batch)
    del loss
    return sum(seen.values())


def require(nbytes: int, settings: Settings, device: torch.device) -> None:
    """
    Raises:
        OutOfMemory: there is not so much; the sentence says which setting helps.
    """
    free = room(settings, device)
    if nbytes > free:
        raise OutOfMemory(f"training takes about {in_words(nbytes)}, and {in_words(free)} are there: {helps(settings)}")


def room(settings: Settings, device: torch.device = torch.device("cpu")) -> float:  # noqa: B008
    """Bytes that training may take, all if nothing tells."""
    found = _free(device) if settings.memory is None else settings.memory
    return math.inf if found is None else found


def helps(settings: Settings) -> str:
    """Which setting to change where memory is too little."""
    if settings.batch > 1:
        return f"give a smaller --batch (now {settings.batch}), or --pieces 8, which computes values again"
    if settings.pieces < 2:
        return "give --pieces 8, which computes values again for gradients"
    return "give --samples N to hold fewer samples, or --learn with fewer words"


def _free(device: torch.device) -> int | None:
    """Bytes that nobody uses; None where nothing tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if found is None else int(found) * 1024


def in_words(nbytes: float) -> str:
    """Bytes as people read them."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{max(1, round(nbytes / 1e6))} MB"
