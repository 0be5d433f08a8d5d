"""Convert text to token ids and back: train tokenizers, encode with them and measure them."""
