"""LSTM, GRU and RNN: found where they are written in parts, and as operators with kernels for int8 weights."""
