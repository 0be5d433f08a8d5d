"""The libraries that are installed: those that optional features need, and those with known vulnerabilities."""
