"""Two corpora compared: verdicts, distributions and n-grams, and the tables and page that show them."""
