"""Compare two corpora by kept documents, distributions and n-grams, and show the results as tables and a
page.
"""
