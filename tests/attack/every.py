"""All cases of the corpus."""

from __future__ import annotations

from attack import corpus, corpus_data

CASES = corpus.CASES | corpus_data.CASES
assert len(CASES) == len(corpus.CASES) + len(corpus_data.CASES), "two cases of one name"
