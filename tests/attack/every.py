"""All cases of the corpus: what has done harm once, or would, by name."""

from __future__ import annotations

from attack import (
    corpus_choices,
    corpus_data,
    corpus_files,
    corpus_folders,
    corpus_functions,
    corpus_models,
    corpus_names,
    corpus_operators,
    corpus_places,
    corpus_quantized,
    corpus_sizes,
    corpus_tables,
)

PARTS = (
    corpus_models.CASES,
    corpus_operators.CASES,
    corpus_files.CASES,
    corpus_data.CASES,
    corpus_folders.CASES,
    corpus_choices.CASES,
    corpus_tables.CASES,
    corpus_functions.CASES,
    corpus_names.CASES,
    corpus_places.CASES,
    corpus_quantized.CASES,
    corpus_sizes.CASES,
)
CASES = {name: case for part in PARTS for name, case in part.items()}
assert len(CASES) == sum(map(len, PARTS)), "two cases of one name"
