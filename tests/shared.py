"""The folder of real models, data and golden vectors: the one ONNXQ_SHARED names, by default ../shared."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("ONNXQ_SHARED") or Path(__file__).resolve().parents[2] / "shared")
