"""Look into a model: features of texts, probes of its layers, the similarity of texts by layer, and attention
heads.
"""
