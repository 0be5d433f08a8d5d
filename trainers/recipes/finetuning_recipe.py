"""The default configuration of a fine-tuning run, before `a.b=value` assignments are applied to it."""

from dataclasses import replace

from trainers.adapters import Method
from trainers.config.architecture import PRETRAINING_ONLY, Model
from trainers.config.finetuning import Encoding, Finetuning
from trainers.config.job import BatchSize, Execution, Init, Optimizer, Schedule, TrainingBudget
from trainers.tasks.schema.task import Task

RATES: dict[str, float] = {
    "full": 2e-5,  # Liu et al. (2019), table 10: 1e-5, 2e-5, 3e-5
    "lora": 5e-4,  # Hu et al. (2022), table 9: 4e-4 to 5e-4 for RoBERTa-base
    "bitfit": 4e-4,  # Ben Zaken et al. (2022), appendix A: 1e-4 to 1e-3
    "ia3": 3e-3,  # Liu et al. (2022), section 3.5
    "adapter": 3e-4,  # Houlsby et al. (2019), section 3.1: 3e-5, 3e-4, 3e-3
    "prefix": 5e-3,  # Liu et al. (2021, P-tuning v2), appendix: 5e-3 to 1e-2
}
"""Default peak learning rates by method. `DEFAULT_RATE` is for the other methods, whose papers' rates belong to
other optimizers and sizes.
"""
DEFAULT_RATE = 1e-3


def finetune(name: str, tasks: tuple[Task, ...], model: Model, base: str | None, method: Method) -> Finetuning:
    """Return the job that fine-tunes the model at `base` on `tasks` or, if `base` is None, trains a new one.
    `model` is the model's configuration; parts that only pretraining uses are left out. Several tasks are
    trained together in text-to-text form.

    The job has 3 epochs (Devlin et al., 2019, appendix A.3: 2 to 4) of batches of 32. Warm-up over 6 % of the
    steps, linear decay to 0 and weight decay 0.1 are those of RoBERTa's fine-tuning (Liu et al., 2019, table
    10), and betas 0.9 and 0.98 those of its pretraining (table 9). The peak learning rate depends on `method`
    (`RATES`, otherwise `DEFAULT_RATE`).
    """
    return Finetuning(
        name=name,
        tasks=tasks,
        model=replace(model, **PRETRAINING_ONLY),  # type: ignore[arg-type]
        init=None if base is None else Init(path=base),
        method=method,
        encoding=Encoding(text_to_text=len(tasks) > 1),
        batch=BatchSize(sequences=32),
        budget=TrainingBudget(epochs=3),
        optimizer=Optimizer(
            learning_rate=RATES.get(method.kind, DEFAULT_RATE), weight_decay=0.1, betas=(0.9, 0.98), epsilon=1e-6
        ),
        schedule=Schedule(kind="linear", warmup_fraction=0.06, final_fraction=0.0),
        execution=Execution(zero_stage=0),
    )
