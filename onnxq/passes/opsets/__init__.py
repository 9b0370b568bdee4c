"""Old versions of the standard operators become those of today, and compute what they did."""
