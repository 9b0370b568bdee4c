"""Steps 5 and 8 together: which plan to carry out, and which one instead once its file was looked at."""
