"""Score texts under decoders, encoders and encoder-decoders, and let decoders and encoder-decoders write
texts.
"""
