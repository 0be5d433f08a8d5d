"""Compare two corpora by verdicts, distributions and n-grams, and show the results as tables and a page."""
