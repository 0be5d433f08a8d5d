"""Objectives that replace spans of tokens."""
