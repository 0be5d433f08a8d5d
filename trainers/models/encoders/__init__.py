"""Encoder architectures, in files named after them, and the networks and heads that they add to
`transformers`.
"""
