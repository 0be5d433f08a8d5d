"""The code that the versions of DeBERTa share: their layers, the enhanced mask decoder, and the discriminator
of version 3.
"""
