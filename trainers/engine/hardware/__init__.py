"""The hardware that models run on: the compiler that some settings need, the device used outside training,
the micro-batch that fits, and utilisation, energy and cost.
"""
