"""Encoders by name, and the parts of models that only pretraining has."""
