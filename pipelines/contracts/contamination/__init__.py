"""What a corpus holds of the items of evaluation sets."""
