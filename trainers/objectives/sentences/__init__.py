"""Objectives that use the sentences of documents."""
