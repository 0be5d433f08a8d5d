"""The report of training runs: one HTML file that loads nothing."""
