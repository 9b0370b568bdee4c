"""Passes that give a quantized model float weights again, which know the codes that they stand for, one spelling each.

Every weight becomes a `GivenTensor`: read as floats it is decoded, encoded again in its own format it is what it was.
`read_codes` runs them all.
"""

from __future__ import annotations
