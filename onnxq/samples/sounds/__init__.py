"""Sounds as samples: read, resampled, and turned into spectra."""
