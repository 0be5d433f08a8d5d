"""Tasks and suites that language models solve without training."""
