"""Files as they come and go: limits before reading, writing whole or not at all, nothing overwritten unasked.

Imports nothing of the package but its errors.
"""
