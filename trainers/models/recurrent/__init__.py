"""Recurrent architectures, each in a file named after it, their networks as `transformers` models
(`*_network`), and the layers that the networks use.
"""
