"""Online weighting, one method per file: the weights of domains in the loss change from step to step."""
