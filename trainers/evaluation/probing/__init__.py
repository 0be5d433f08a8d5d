"""Probe the hidden states of a model: features of texts, and classifiers that are trained on them layer by
layer.
"""
