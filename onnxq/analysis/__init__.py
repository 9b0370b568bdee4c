"""Error analysis: of a tensor, of a layer, of a model, and the suite that compares formats.

Tensors: `error_stats`, `tensor_error`, `scale_sweep`, `outlier_impact`, `compare_bit_widths`, `compare_granularities`,
`compare_formats`, held against `theory`, and single figures (`scores.py`). Models: `analyze_model`, `run_benchmark`;
arrays: `benchmark_arrays`, `benchmark_made`. Weights to try things on: `synthetic.MAKERS`.
"""

from __future__ import annotations

from onnxq.analysis import synthetic, theory
from onnxq.analysis.benchmark import leads, run_benchmark
from onnxq.analysis.benchmarks.arrays import benchmark_arrays, benchmark_made
from onnxq.analysis.benchmarks.results import Benchmark, Degradation, Lead
from onnxq.analysis.layers import Form, FormError, Layer, ModelAnalysis, analyze_model
from onnxq.analysis.scores import (
    best_by_mse,
    compare_formats,
    compression_ratio,
    error_within_bounds,
    outlier_rate,
    quality_score,
    scale_sensitivity,
)
from onnxq.analysis.statistics import ErrorStats, ErrorSums, error_stats, retention
from onnxq.analysis.sweeps import (
    OutlierImpact,
    ScalePoint,
    best_scale,
    compare_bit_widths,
    compare_granularities,
    outlier_impact,
    scale_sweep,
)
from onnxq.analysis.tensor import tensor_error

__all__ = [
    "Benchmark",
    "Degradation",
    "ErrorStats",
    "ErrorSums",
    "Form",
    "FormError",
    "Layer",
    "Lead",
    "ModelAnalysis",
    "OutlierImpact",
    "ScalePoint",
    "analyze_model",
    "benchmark_arrays",
    "benchmark_made",
    "best_by_mse",
    "best_scale",
    "compare_bit_widths",
    "compare_formats",
    "compare_granularities",
    "compression_ratio",
    "error_stats",
    "error_within_bounds",
    "leads",
    "outlier_impact",
    "outlier_rate",
    "quality_score",
    "retention",
    "run_benchmark",
    "scale_sensitivity",
    "scale_sweep",
    "synthetic",
    "tensor_error",
    "theory",
]
