"""Parts of the DeBERTa models: the layers with the enhanced mask decoder, and DeBERTaV3's discriminator with
its embeddings.
"""
