"""What formats have in common: affine grids, codebooks, casts, GGUF's blocks, scales of scales."""
