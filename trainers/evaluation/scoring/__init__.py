"""Likelihoods of text under decoders, encoders and encoder-decoders, computed on packed rows."""
