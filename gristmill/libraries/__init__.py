"""Check installed libraries: those that optional features need, and those with known vulnerabilities."""
