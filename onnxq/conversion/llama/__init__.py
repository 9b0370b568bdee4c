"""Decoders like Llama, found in graphs of any exporter by what feeds what, and written as llama.cpp reads them."""
