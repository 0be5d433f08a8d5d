"""Convert text to token ids and back: train tokenizers, encode with them and measure them. This package
imports nothing from this project except `gristmill`.
"""
