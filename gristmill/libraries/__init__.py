"""Third-party libraries: checks for installed extras and known vulnerabilities, faster imports, a faster
start of Ray, and the code identity of plugins.
"""
