"""Objectives that need the sentences of documents."""
