"""Helpers for third-party libraries, such as checks for installed extras and known vulnerabilities."""
