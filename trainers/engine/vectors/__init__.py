"""The vectors of segments of rows, and losses over them."""
