"""Training: the steps of a run.

launch    one process, torchrun, or Ray with workers that may be lost
  |
begin     weights from a seed, a run, an export or a Hugging Face directory; or the newest checkpoint
  |
loop      samples of the order (data/)
  |         -> rows, made by the objective, in threads that run ahead (objectives/, data/prefetch)
  |         -> forward pass -> losses by name -> backward, optimizer step (engine/)
  |         -> every N steps: log, validation, ledger and checkpoint (runs/)
  v
export and report (inference/, report/)
"""
