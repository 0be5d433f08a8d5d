"""Text to token ids and back: training, encoding, measuring. Imports nothing of this project except
`gristmill`.
"""
