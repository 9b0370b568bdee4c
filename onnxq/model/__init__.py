"""Questions asked of a model: is it legal, what are its types, where are its weights.

It changes nothing (passes do), and knows nothing of plans.
"""
