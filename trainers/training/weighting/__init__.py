"""Online weighting, which changes the weights of domains in the loss from step to step. Each method has its
own file.
"""
