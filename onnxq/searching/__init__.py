"""Which format each layer gets under a bound on size, time or accuracy: what there is to choose from, what each choice
costs and harms, the exact solution, and its correction where layers interact."""
