"""Write docs/finetuning_matrix.md: `python docs/finetuning_matrix.py` tries every combination, in a few minutes."""

import itertools
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.trainers.adapters.finetuning_cells import AXES, KINDS, Matrix, Refused
from trainers.adapters import METHODS
from trainers.models import MODELS

HEAD = """\
# The matrix of fine-tuning

Every method on every architecture for every kind of task. This page is generated: `python docs/finetuning_matrix.py` makes all
{cells} cells. A test makes a selection of them that covers every pair of method, architecture and kind, and fails if the page
lacks a method, an architecture or a kind.

`yes` is a cell in which, from a base in Hugging Face layout with dropout and several inputs in a row,

1. two steps have finite losses, and finite gradients for everything that is trained, and for nothing else,
2. frozen parameters keep their values,
3. a model that is loaded from the checkpoint predicts exactly the same, and its predictions can be scored.

A number is a combination that is refused, with the reason below. The models are tiny: this page says what runs, not how well it
learns.
"""

Cell = tuple[str, str, str]


def page(made: Mapping[Cell, Refused | None]) -> str:
    """Return the page, given the outcome of every combination."""
    shown_first = (made[cell[1], cell[2], cell[0]] for cell in itertools.product(KINDS, METHODS, MODELS))
    reasons = list(dict.fromkeys(its.reason for its in shown_first if its is not None))
    pieces = [HEAD.format(cells=len(made))]
    for kind in KINDS:
        pieces += [f"## {kind}\n", f"| method | {' | '.join(MODELS)} |", "|---" * (len(MODELS) + 1) + "|"]
        for method in METHODS:
            outcomes = [made[method, architecture, kind] for architecture in MODELS]
            shown = ["yes" if its is None else str(reasons.index(its.reason) + 1) for its in outcomes]
            pieces.append(f"| `{method}` | {' | '.join(shown)} |")
        pieces.append("")
    pieces += ["## Why not\n", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]
    return "\n".join(pieces) + "\n"


def main() -> None:
    """Try all combinations, and write the page if none of them fails."""
    warnings.simplefilter("ignore")
    began, made, failed = time.perf_counter(), {}, []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRISTMILL_CACHE"] = f"{folder}/cache"
        matrix = Matrix(Path(folder))
        for cell in itertools.product(*AXES):
            try:
                made[cell] = matrix.make(*cell)
            except Exception as error:
                failed.append(f"{' '.join(cell)}: {type(error).__name__}: {error}")
    if failed:
        sys.exit("\n".join(failed))
    Path(__file__).with_suffix(".md").write_text(page(made))
    print(f"{len(made)} cells in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
