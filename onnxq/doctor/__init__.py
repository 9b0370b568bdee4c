"""What is wrong with a model, whoever quantized it: findings with their severity, place and fix.

One rule a file in `rules/`. `patient` is the model as rules see it, `examine` runs them all, `mend` writes a new file
without what can be mended mechanically, `sarif` puts findings into the form that code hosts read.
"""
