"""Steps 1 to 4, which every plan needs, and 5 and 8 together: which plan to carry out, and which one instead once its
file was looked at."""
