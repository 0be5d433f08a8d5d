"""Contamination: which items of evaluation sets occur in a corpus."""
