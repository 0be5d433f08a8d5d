"""Vectors of the segments of rows, and losses over these vectors."""
