"""Training data: from token shards, or the examples of tasks, to batches. The main modules are:

packed_corpus    shards of a corpus -> streams of sources -> packed rows
mixture_weights  weights by stage, with caps on repetition
examples/        examples of tasks -> inputs -> rows, and the outputs of a head -> predictions
order            sample index -> source and sequence, independent of the workers
prefetch         makes the next batches while the model computes
"""
