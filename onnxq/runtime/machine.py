"""What a machine is, as far as it decides how long a kernel takes."""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass
from pathlib import Path

from onnxq.errors import amount
from onnxq.runtime import native
from onnxq.runtime.ort.installed import version

#: Instructions that kernels are chosen by, as Linux names them.
_X86 = ("avx2", "fma", "avx_vnni", "avx_vnni_int8", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
_ARM = ("asimddp", "i8mm", "bf16", "sve", "sve2", "svei8mm", "sme")


def threads_in_words(count: int) -> str:
    """Threads of one operator; 0: as many as onnxruntime takes."""
    return amount(count, "thread") if count else "all threads"


@dataclass(frozen=True)
class Machine:
    """The machine that times were measured on.

    Attributes:
        cpu: its processor's name.
        isa: the architecture, and the instructions that kernels are chosen by.
        cores: that a process may use.
        onnxruntime: its version; empty where there is none.
        library: the interface of onnxq's compiled library; 0: there is none.
    """

    cpu: str
    isa: str
    cores: int
    onnxruntime: str
    library: int

    def __str__(self) -> str:
        return f"{self.cpu}, {amount(self.cores, 'core')}, onnxruntime {self.onnxruntime}"

    def is_like(self, other: Machine) -> bool:
        """Whether kernels take as long on either."""
        return self._kernels == other._kernels

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether onnxq's own kernels multiply bfloat16 there."""
        return bool(self.library) and not {"amx_bf16", "avx512_bf16"}.isdisjoint(self.isa.split())

    @property
    def _kernels(self) -> tuple[str, str, str, int]:
        return self.cpu, self.isa, self.onnxruntime, self.library


@functools.cache
def this_machine() -> Machine:
    """The machine that this runs on."""
    told = _told()
    name = told.get("model name") or told.get("cpu model") or platform.processor() or "unknown processor"
    flags = (told.get("flags") or told.get("features") or "").split()
    isa = " ".join([platform.machine() or "unknown", *sorted({*_X86, *_ARM}.intersection(flags))])
    abi = 0 if native.path() is None else native.ABI_VERSION
    return Machine(" ".join(name.split()), isa, native.cores(), version(), abi)


def _told() -> dict[str, str]:
    """What Linux tells of the first processor, by its lower-case words."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = [line.partition(":") for line in text.split("\n\n")[0].splitlines()]
    return {key.strip().lower(): value.strip() for key, _, value in lines}
