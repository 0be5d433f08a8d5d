"""Objectives that read the sentences of documents."""
