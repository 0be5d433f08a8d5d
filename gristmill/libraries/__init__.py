"""Third-party libraries: checks for installed extras and known vulnerabilities, faster imports and starts of
large libraries, and the code identity of plugins.
"""
