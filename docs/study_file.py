"""Write docs/study_file.md from the schema of studies: `python docs/study_file.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from training_file import section

from trainers.studies.proposals.proposal_settings import ProposalSettings
from trainers.studies.schema.study_designs import Grid, LeaveOneOut, Listed, ListEntry, Simplex, Sobol, Swarm
from trainers.studies.schema.study_file import (
    RESERVED,
    Confirmation,
    DoReMi,
    Metrics,
    Proxies,
    Reuse,
    Study,
    Target,
    Verdict,
)

HEAD = """\
# The study file

A study is a YAML file with these fields. [studies.md](studies.md) is the tutorial. This page is generated from the
dataclasses that parse the file (`python docs/study_file.py`); a test fails when they differ. Any field can be changed on the
command line: `study run STUDY design.runs=64`.
"""
DESIGNS = {
    "swarm": Swarm,
    "sobol": Sobol,
    "simplex": Simplex,
    "list": Listed,
    "grid": Grid,
    "leave_one_out": LeaveOneOut,
}
SECTIONS = (Target, Proxies, Metrics, ProposalSettings, Reuse, DoReMi, Confirmation, Verdict)


def page() -> str:
    """Return the whole page."""
    pieces = [HEAD, section(Study, "The file"), "### Fields of the job that a study sets itself\n"]
    pieces += ["| field | instead |", "|---|---|", *(f"| `{name}` | {instead} |" for name, instead in RESERVED.items())]
    pieces += ["", "## Designs\n", "`design: {kind: NAME, field: value}`.\n"]
    for name, design in DESIGNS.items():
        pieces.append(section(design, name, 3))
    pieces.append(section(ListEntry, "ListEntry", 4))
    pieces += [section(cls, cls.__name__) for cls in SECTIONS]
    return "\n".join(pieces)


if __name__ == "__main__":
    Path(__file__).with_name("study_file.md").write_text(page())
