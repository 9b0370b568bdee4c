"""Benchmarks of arrays: what each format keeps of them, and what is shown of that."""
