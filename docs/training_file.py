"""Write docs/training_file.md from the dataclasses and recipes of `trainers`: `python docs/training_file.py`."""

import dataclasses
import inspect
import sys
import typing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from trainers.adapters import METHODS
from trainers.config.architecture import ARCHITECTURES, Model
from trainers.config.finetuning import Finetuning
from trainers.config.job import Job
from trainers.config.pretraining import Pretraining
from trainers.objectives import OBJECTIVES
from trainers.recipes import RECIPES

HEAD = """\
# The training file

`python -m trainers pretrain RECIPE corpus=DIR run=DIR a.b=value ...` starts or resumes a run. RECIPE is the name of a function
below, or the path of a YAML file with these fields; each run writes its own, complete, to `RUN/resolved.yaml`. This page is
generated from the dataclasses that parse them (`python docs/training_file.py`); a test fails when they differ.

Precedence: defaults, then the recipe, then `a.b=value` arguments, whose values are YAML: `objective.rate=0.3`,
`data.weights={web: 3, code: 1}`. An unknown field, a wrong type and a value out of range are errors that name the field, the
value and the nearest allowed name, before the first step. Fields that are null are computed from the corpus, printed, and
written to `resolved.yaml`. `~` and `$HOME` at the start of `corpus`, `run` and other paths are expanded once for all
workers, by the process of the command.
"""

TRAINED_HERE = """\
The recipes named `tiny_...`, `llama_tiny` and `demo_decoder` are trained by the tests or the demo. The others have not been
trained at full size here. The tests count their parameters, but for `prefix_lm_base` and the recipes of nanoGPT. They resolve
each that has a vocabulary of its own with a tokenizer of the published size and special tokens, and train at least one of these
of each architecture for two steps at a narrow width in fp32. `gpt3` is a parameter count only.
"""

BEGINNINGS = """\
### Five uses

Train longer: steps, schedule and data continue from the parent's newest checkpoint, up to the new budget.

    python -m trainers pretrain runs/base/resolved.yaml run=runs/longer budget.steps=20000 budget.tokens=null \\
        'init={path: runs/base, optimizer: keep, data: continue}'

Decay branches of a WSD run, from a checkpoint in its stable phase (`checkpoints.keep_every` keeps them): at step 8,000 here, over
the last 2,000 of 10,000 steps. With the parent's schedule, a branch has the parent's losses.

    python -m trainers pretrain runs/base/resolved.yaml run=runs/decay_8000 budget.steps=10000 budget.tokens=null \\
        schedule.kind=wsd schedule.decay_fraction=0.2 schedule.final_fraction=0 \\
        'init={path: runs/base, step: 8000, optimizer: keep, data: continue}'

Longer contexts, with another base of rotary positions. Rows of another length are different samples, so the corpus is read from
the start; another `seed` gives another order. Learned positions cannot be extended.

    python -m trainers pretrain runs/base/resolved.yaml run=runs/long data.sequence_length=8192 model.positions=8192 \\
        model.rope_base=500000 batch.sequences=64 batch.tokens=null budget.steps=1000 budget.tokens=null seed=1 \\
        init.path=runs/base

Continued pretraining from a local Hugging Face directory, on a corpus built with its tokenizer
(`shards: {tokenizer: models/gpt2/}`). The directory has config.json, safetensors and tokenizer.json.

    python -m trainers pretrain gpt2_small corpus=data/corpora/mine run=runs/continued init.path=models/gpt2

Another vocabulary: continued pretraining on a corpus with a tokenizer of its own, for example one trained on the text of a new
domain. All layers between the tables of the vocabulary are the parent's.

    python -m trainers pretrain gpt2_small corpus=data/corpora/law run=runs/law init.path=models/gpt2 init.vocabulary=transfer

The new run records the fingerprints of its parent in `run.json` and `ledger.json`. Until its first checkpoint it needs the
parent's files unchanged. Its ZeRO stage, number of workers and launcher may differ from the parent's. A tensor or setting of the
model that does not fit is reported by name, in one error.
"""


FINETUNING = """\
A job of `kind: finetuning` is made by `python -m trainers finetune TASK model=DIR a.b=value ...` ([guide](finetuning.md));
its RUN/resolved.yaml holds the tasks whole. Sections that are not described here are those of pretraining.
"""

LINKED = {
    "objective": "[objective](#objectives)",
    "method": "[method](#methods)",
    "tasks": "list of [tasks](task_file.md)",
    "design": "[design](#designs)",
}
"""What the table of fields says of fields that are described elsewhere."""


def kind(hint: Any) -> str:
    """Return the name of a type for a reader of YAML."""
    if hint is type(None):
        return "null"
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (tuple, list):
        return f"list of {kind(parts[0])}"
    if origin is dict:
        return f"mapping to {kind(parts[1])}"
    if parts:
        return " or ".join(kind(part) for part in parts)
    if dataclasses.is_dataclass(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return {bool: "true, false", int: "whole number", float: "number", str: "text", Any: "any value"}[hint]


def default(field: Any) -> str:
    """Return the default of a field as text."""
    parts = field.default if isinstance(field.default, tuple) else (field.default,)
    if any(map(dataclasses.is_dataclass, parts)):
        return "its defaults"
    if field.default is not dataclasses.MISSING:
        return "null" if field.default is None else f"`{field.default!r}`"
    return "required" if field.default_factory is dataclasses.MISSING else "its defaults"


def section(cls: Any, title: str, level: int = 2, more: str = "") -> str:
    """Return a section: the docstring of a dataclass, followed by the text `more` and a table of its fields."""
    hints = typing.get_type_hints(cls)
    rows = [
        f"{'#' * level} {title}\n",
        (inspect.getdoc(cls) or "") + more,
        "",
        "| field | type | default |",
        "|---|---|---|",
    ]
    for field in dataclasses.fields(cls):
        if field.name == "kind" and cls in (*OBJECTIVES.values(), *METHODS.values()):
            continue
        of = LINKED.get(field.name) or kind(hints[field.name])
        rows.append(f"| `{field.name}` | {of} | {default(field)} |")
    return "\n".join(rows if len(rows) > 5 else rows[:3]) + "\n"


def sections_of(cls: Any, seen: dict[str, Any]) -> dict[str, Any]:
    """Return the dataclasses in the fields of `cls`, at any depth, in the order of first mention, except for
    fields in LINKED.
    """
    hints = typing.get_type_hints(cls)
    for hint in [hints[field.name] for field in dataclasses.fields(cls) if field.name not in LINKED]:
        for part in [hint, *typing.get_args(hint)]:
            if dataclasses.is_dataclass(part) and part.__name__ not in seen:
                seen[part.__name__] = part
                sections_of(part, seen)
    return seen


def page() -> str:
    """Return the whole page."""
    of_all_kinds = "\n\n" + (inspect.getdoc(Job) or "").partition("\n\n")[2]
    pieces = [HEAD, section(Pretraining, "The file", more=of_all_kinds)]
    for name, cls in sections_of(Pretraining, {}).items():
        pieces += [section(cls, name), *([BEGINNINGS] if name == "Init" else [])]
    pieces += ["### Architectures\n", "| architecture | family | positions |", "|---|---|---|"]
    for name, traits in ARCHITECTURES.items():
        pieces.append(f"| `{name}` | {traits.family.replace('_', '-')} | {', '.join(traits.positions)} |")
    pieces += ["\n## Objectives\n", "`objective: NAME`, or `objective: {kind: NAME, field: value}`.\n"]
    for name, cls in sorted(OBJECTIVES.items()):
        families = "all that each of its parts trains"  # a mixture, whose parts decide
        if isinstance(cls.families, tuple):
            families = ", ".join(family.replace("_", "-") for family in cls.families)
        pieces += [section(cls, name, 3), f"Families of models: {families}.\n"]
        pieces += [section(held, held_name, 4) for held_name, held in sections_of(cls, {}).items()]
    described = sections_of(Pretraining, {})
    pieces += ["## Fine-tuning\n", FINETUNING, section(Finetuning, "The job", 3)]
    pieces += [section(cls, name, 3) for name, cls in sections_of(Finetuning, {}).items() if name not in described]
    pieces += ["### Methods\n", "`method=NAME method.field=value` on the command line.\n"]
    pieces += [section(cls, name, 4) for name, cls in METHODS.items()]
    pieces += ["## Recipes\n", TRAINED_HERE, "| recipe | model | objective | what it is |", "|---|---|---|---|"]
    for name, recipe in RECIPES.items():
        config, model = recipe(), recipe().model
        assert isinstance(model, Model)
        shape = f"{model.architecture}, {model.layers} x {model.width}"
        about = " ".join((inspect.getdoc(recipe) or "").split("\n\n")[0].split())
        pieces.append(f"| `{name}` | {shape} | `{config.objective.kind}` | {about} |")
    return "\n".join(pieces) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("training_file.md").write_text(page())
