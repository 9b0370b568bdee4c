"""Other people's quantized weights: read from their files, matched to a model's products, put in as they are."""
