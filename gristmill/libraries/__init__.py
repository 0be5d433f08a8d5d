"""Third-party libraries: checks for installed extras and known vulnerabilities, faster imports, a faster
start of Ray, and digests that identify the code of plugins.
"""
