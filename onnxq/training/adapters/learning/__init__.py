"""How adapters learn: a model whose matrices stay packed runs in torch, and what stands beside them follows a loss."""
