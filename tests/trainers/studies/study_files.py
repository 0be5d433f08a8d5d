"""Studies of the tiny corpus, with results computed by a formula instead of training."""

import hashlib
from dataclasses import asdict

import numpy as np

from gristmill.storage.store import write_json
from trainers.studies.designs.study_runs import open_study
from trainers.studies.running.study_directory import RUNS, load_study, root_of
from trainers.studies.running.train_study_run import FORMAT, RESULT, RunResult

STUDY = """\
name: tiny
question: Is more code worth it?
output: {root}
corpora: [{corpus}]
recipe: llama_tiny
settings: {{batch.sequences: 4, data.sequence_length: 64}}
target: {{tokens: 50e3}}
design: {{kind: swarm, runs: 24}}
proxies: {{tokens: 5e3, anchors: 3}}
metrics: {{tokens: 512, last: 2}}
proposal: {{kl: 0.001, max_epochs: null, draws: 20}}
confirmation:
  tokens: 10e3
  candidates: [proposal, prior, more_code]
  own: {{more_code: {{code: 0.8, plays: 0.2}}}}
"""


def write_study(tmp_path, corpus, text=STUDY):
    """Write a study file whose directory is `tmp_path`/study, and return the file's path."""
    file = tmp_path / "tiny.yaml"
    file.write_text(text.format(root=tmp_path / "study", corpus=corpus))
    return file


def opened(file, *overrides):
    study = load_study(file, overrides)
    return open_study(study), root_of(study)


def planted(run):
    """Return the bits per byte of `code` and `plays`. A larger share of either lowers its own value most, and
    `plays` also lowers that of `code` a little. Noise from the seed is shared by all mixtures; a run's own
    noise is a hundredth of it.
    """
    code, plays = (run.weights.get(name, 0.0) for name in ("code", "plays"))
    generator = np.random.default_rng(run.job.seed)
    common = 0.02 * generator.normal()
    own = 2e-4 * np.random.default_rng(int(hashlib.sha256(run.name.encode()).hexdigest()[:8], 16)).normal(size=2)
    return {
        "code": 2 + float(np.exp(0.2 - 1.2 * code - 0.3 * plays)) + common + float(own[0]),
        "plays": 1.5 + float(np.exp(0.1 - 0.5 * plays)) + common + float(own[1]),
    }


def finish(root, runs, **changes):
    """Write the results that `planted` gives for `runs`."""
    for run in runs:
        tokens = run.job.budget.tokens
        sources = {
            name: {"tokens": round(share * tokens), "requested_tokens": share * tokens, "epochs": 1.0}
            for name, share in run.weights.items()
        }
        result = RunResult("finished", "", planted(run), sources, tokens, 20, 6e9, 10_000, 3.0, 2.0, 0.5)
        (root / RUNS / run.key).mkdir(parents=True, exist_ok=True)
        write_json(root / RUNS / run.key / RESULT, {"format": FORMAT, **asdict(result), **changes})
