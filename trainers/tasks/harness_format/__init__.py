"""Read task files of lm-evaluation-harness without that library: their fields, templates, data and answer
filters.
"""
