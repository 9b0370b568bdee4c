"""Texts as samples: tokens, what goes with them, and caches from decoding."""
