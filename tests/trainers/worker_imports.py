"""The modules that the server of training workers imports before its first fork
(`tests.trainers.launching.preloaded`): everything that training imports, at start-up or later, and what
DeepSpeed imports when it starts, namely its Muon optimizer and with it all of torch.compile.
"""

import gc
from importlib import import_module

from numba.core.registry import cpu_target

IMPORTED = (
    *("trainers.__main__", "trainers.recipes", "trainers.training.loop", "trainers.report.run_page"),
    *("trainers.inference.model_export", "transformers.models.llama.modeling_llama", "pandas", "peft"),
    *("deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer"),
)

gc.disable()  # nothing of what they make is garbage
for name in IMPORTED:
    import_module(name)
# What numba does at the first call of a kernel.
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
gc.freeze()
gc.enable()
