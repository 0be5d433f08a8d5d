"""Online weighting, one method per file: weights of domains in the loss that change from step to step."""
