"""Likelihoods of text under decoders, encoders and encoder-decoders, on packed rows."""
