"""Words of tables, reports and options, and what they mean."""

from __future__ import annotations

#: Our own terms, as ARCHITECTURE.md has them in its tables of nouns and of terms.
TERMS = {
    "recipe": "what the user asks for: scheme, rules, numbers",
    "target": (
        "where the model will run: which operators and formats have kernels there, and the passes that write them"
    ),
    "job": "one prepared model with its recipe, target, first plan and data",
    "plan, choice": "what becomes of each node, and why",
    "format": "what a code means as a number, and how a number is rounded to a code",
    "algorithm": "which codes and scales a weight gets, e.g. round to nearest or least squared error",
    "layout": "the bytes of codes and scales, as an operator reads them",
    "encoding": "one weight in one format, computed when it is read",
    "pass": "one rewrite of the graph: one class, one file",
    "own operator": "an operator of the `onnxq` domain, with a function body in standard ONNX that computes the same",
    "sample": "one set of inputs for the model: a dict of arrays, which onnxruntime calls a feed",
    "summary, evidence": (
        "what is kept of one activation, in constant size: extremes, moments, a histogram; and for algorithms"
        " that need data the Gram matrix of a layer's input"
    ),
    "collector": "a method that makes a range of a summary: percentile, entropy, …",
    "range": "lowest and highest number of an activation, from which its scale and zero point follow",
    "quality": "signal-to-noise ratio of outputs, by output and kind of sample, and decisions that flip",
    "method": (
        "how a node computes: static (int8, fixed ranges), dynamic (int8, ranges of each run), packed, "
        "stored, half, keep"
    ),
    "packed": "the kernel reads the codes; they are never unpacked in memory",
    "stored": "the codes are unpacked to floats once, when the model is loaded",
    "region": "adjacent int8 operators between which nothing is converted to float",
    "contrast": (
        "variance of a float output over the power of the error, in dB: SQNR without what a constant offset adds"
    ),
    "floor, aim": "the SQNR that `--min-sqnr` demands; the 20 dB that are tried for without it",
    "label": "the kind of a sample; a model is judged by its worst label",
}
#: Words of the field, as they stand in tables and reports.
FIGURES = {
    "block, b32": "consecutive weights along the summed dimension that share a scale; b32: 32 of them",
    "tensor, channel": "weights that share a scale: all of a tensor, or those of one output channel",
    "rank": "of what is added to a weight to make up for its codes: two thin matrices with so many rows between them",
    "SQNR": (
        "signal to quantization noise ratio in dB: 10·log10 of the power of the float output over that of the"
        " error; 6 dB are one bit, 20 dB an error of a tenth"
    ),
    "error": (
        "SQNR of the worst output on the worst kind of sample, with onnxruntime's optimizer on; behind it the inputs,"
        " and what your own samples reach, all together and each at least"
    ),
    "lowest": (
        "which of several outputs, and which kind of sample where it is not your own, has the largest error: the model"
        " is judged by it"
    ),
    "copied": (
        "why nothing was to be done, where the output is the model as it was; of folders: files that are taken as they"
        " are"
    ),
    "flips": "share of the decisions (the likeliest class, the next token) that are others than in float",
    "KL divergence": (
        "how far the quantized model's probabilities are from float's, in nats, in the mean; 0 is the same"
    ),
    "size": "bytes of all files of the model, and the share of the float model's",
    "speed": (
        "least time of a run of both models, taken in turns, and how many times as fast as float that is; "
        "behind ± how far it is to be trusted"
    ),
    "kernels": (
        "operators of the loaded file that compute on integers or packed weights, as onnxruntime's profiler "
        "saw them run"
    ),
    "becomes": "what a node's weights or its kernel are in the quantized model; float: as it was",
    "float": "a node that is as it was, in the model's own floating-point numbers",
    "static": "of a node: int8 activations, whose ranges were found by calibration",
    "dynamic": "of a node: int8 activations, whose range is measured in every run, so that it needs no data",
    "fused": "with the nodes around it one kernel, which reads float activations",
    "held-back": "of samples: kept out of calibration, so that a model is judged by others than its ranges fit",
    "weights": "how many numbers of a node are weights; of several nodes that share them, at the first",
    "why": "why a node is not as the scheme asks; empty where it is",
    "ranges": "of activations: lowest and highest number that int8 codes reach, by the calibration method named",
    "plan by kernel times": "which nodes compute in integers was decided by times measured on the machine named",
    "not proven": (
        "the models were not compared on data of yours: made-up inputs show weak points, not how good it is"
    ),
    "cosine": "of the angle between two tensors as vectors: 1 is the same direction",
    "zero point": "the code that stands for the number 0",
    "scale": "the step between two neighbouring codes",
    "cumulative": "of a layer: all error that has added up until there, both models run from their inputs on",
    "local": "of a layer: the error that it adds itself, when it reads what the float model has there",
    "nats": "a loss in natural logarithms; 0.01 are one per cent of perplexity",
    "harm": "what a search weighs against size: KL divergence where something is decided, else noise over variation",
    "median": "the middle of all times; behind it the interval that holds it with a probability of 95 %",
    "peak memory": "bytes by which a process grows that opens the model and runs it once",
}
