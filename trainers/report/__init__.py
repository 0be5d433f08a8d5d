"""The report of training runs: one self-contained HTML file."""
