"""The hardware that models run on: settings that suit it, how well a run uses it, and the energy and carbon
dioxide that this costs.
"""
