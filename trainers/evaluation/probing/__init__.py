"""What the hidden states of a model hold: features of texts, and classifiers trained on them layer by layer."""
