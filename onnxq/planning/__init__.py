"""Plans as far as they follow from the model, the recipe and the target, before anything is measured."""
