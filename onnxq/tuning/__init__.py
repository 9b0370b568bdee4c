"""Plans measured: what each node costs and what noise it adds, and which plan is the best for that."""
