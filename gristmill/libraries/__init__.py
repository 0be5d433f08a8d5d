"""Third-party libraries: checks for installed extras and known vulnerabilities, and faster imports and starts
of large libraries.
"""
