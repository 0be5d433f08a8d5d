"""Text to token ids and back: training, encoding, measuring. Imports nothing else of this project."""
