"""Topics of documents: clusters of their embeddings at one or two levels, named by characteristic words."""
