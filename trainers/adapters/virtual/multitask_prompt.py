"""Multitask prompt tuning (Wang et al., 2023): a prompt shared by all tasks, multiplied elementwise by a
low-rank matrix per task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gristmill.errors import ConfigError
from trainers.adapters.shared.blocks import token_embedding
from trainers.adapters.shared.training_method import Encode, TrainingMethod, freeze, set_tensors
from trainers.adapters.virtual.prompt_tuning import check_prompt, prompt_config, start_rows


@dataclass(frozen=True)
class MultitaskPrompt(TrainingMethod):
    """Train a shared prompt of `tokens` virtual tokens and, for each of `tasks` tasks, a matrix of rank
    `rank`, stored as its two factors. A task's prompt is the elementwise product of the shared prompt and the
    task's matrix. The distillation from single-task prompts of Wang et al. (2023) is not implemented.
    """

    kind: Literal["multitask_prompt"] = "multitask_prompt"
    tokens: int = 20
    tasks: int = 1
    rank: int = 1

    def check(self) -> None:
        check_prompt(self.tokens, "random", None)
        for name in ("tasks", "rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed 1 or more")

    @property
    def virtual_tokens(self) -> int:
        return self.tokens

    def first_virtual(self, rows: int, task: int) -> int:
        """Return the id of the first virtual token of a task; every task has `tokens` ids of its own. Raises
        ConfigError if `task` is not below `tasks`.
        """
        if not 0 <= task < self.tasks:
            raise ConfigError(f"method.tasks: got {self.tasks}, the run has more; set it to {task + 1} or more")
        return rows + task * self.tokens

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        from trainers.adapters.virtual.virtual_embedding import TaskRows, add_virtual_tokens

        table = token_embedding(network, architecture)
        rows = start_rows(table, self.tokens, "vocabulary", None, None)
        freeze(network)
        add_virtual_tokens(table, TaskRows(rows, self.tasks, self.rank))

    def peft_config(self, network: Any, architecture: str, family: str) -> Mapping[str, Any] | None:
        """Return peft's MULTITASK_PROMPT_TUNING configuration, or None for encoders: peft 0.21 does not pass
        the task to the prompt of a feature-extraction model.
        """
        if family == "encoder":
            return None
        others = {"num_tasks": self.tasks, "num_ranks": self.rank}
        return prompt_config("MULTITASK_PROMPT_TUNING", network, architecture, family, self.tokens, **others)

    def peft_state(self, network: Any, architecture: str) -> dict[str, Any]:
        virtual = token_embedding(network, architecture).virtual
        rows = {"prefix_task_cols": virtual.columns, "prefix_task_rows": virtual.task_rows}
        return {name: tensor.detach() for name, tensor in {"prompt_embeddings": virtual.prompt(), **rows}.items()}

    def load_peft(self, network: Any, architecture: str, state: Mapping[str, Any]) -> None:
        virtual = token_embedding(network, architecture).virtual
        rows = {"prefix_task_cols": virtual.columns, "prefix_task_rows": virtual.task_rows}
        ours = {"prompt_embeddings": virtual.prompt.rows.weight, **rows}
        set_tensors({name: tensor.detach() for name, tensor in ours.items()}, state)
