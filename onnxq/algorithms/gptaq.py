"""gptaq: gptq for what a layer gets behind quantized ones, with weights that make up for what these changed.

With rows x of the float model and x' of the partly quantized one, codes q are to bring x'·q near x·w. The error is
least for real weights w' = H'⁻¹ · Σ x'ᵀx · w with H' = Σ x'ᵀx', and what rounding adds is |L'ᵀ(w' − q)|² again: so
the codes are those of gptq for w' and H'. As much of the way from w to w' is gone as rows held back speak for.

Where samples cannot be followed through a quantized model (a weight that is read in several places, evidence from a
file), it is gptq.

Source: Li et al., GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric Calibration (ICML 2025); the weights w'
in closed form as in Frantar & Alistarh, Optimal Brain Compression (NeurIPS 2022), section 5.
"""

from __future__ import annotations

from onnxq.algorithms.gptq import quantize
from onnxq.formats import Format, Granularity

#: Needs what data say of the layer, behind layers that are quantized.
NEEDS_DATA = FOLLOWS = True

__all__ = ["FOLLOWS", "NEEDS_DATA", "quantize", "suits"]


def suits(op_type: str, format: Format, granularity: Granularity) -> bool:
    return format.bits <= 4 and format.scale_type is not None
