"""Third-party libraries: checks for installed extras and known vulnerabilities, faster imports, a faster
start of Ray, the longest input of a `transformers` model, and digests that identify the code of plugins.
"""
