"""What a network counts: positions, lengths and steps of time, which half precision does not hold."""
