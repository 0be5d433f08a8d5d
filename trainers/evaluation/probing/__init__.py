"""Examine what a model has learned: write its hidden states to a table, probe its layers, measure how well
each layer captures the similarity of texts, and measure its attention heads.
"""
