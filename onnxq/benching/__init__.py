"""How fast models are, whoever made them: runs in turns, by batch and threads, kernel by kernel, token by token."""
