"""Score texts under decoders, encoders and encoder-decoders, and write texts with decoders and
encoder-decoders.
"""
