"""Training: batch -> objective -> forward pass -> losses -> engine step -> log, ledger, checkpoint.

begin     weights from a seed, a run, an export or a Hugging Face directory
loop      the steps of one run on one worker
launch    one process, torchrun, or Ray with workers that may be lost
"""
