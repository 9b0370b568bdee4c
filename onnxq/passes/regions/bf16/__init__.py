"""Regions of bfloat16: islands of float operators around convolutions whose weights are stored so."""
