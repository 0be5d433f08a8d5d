"""Code for the versions of DeBERTa: the layers and the enhanced mask decoder that all versions share, the
decoder's attention in version 1, and the discriminator of version 3 with its embeddings.
"""
