#!/bin/bash
# The fine-tuning runs of docs/glue.md: bash docs/glue/glue.sh ARM SEEDS TASK ...
#
# ARM is `pretrained` (runs/encoder) or `scratch` (new weights). Both have the same seeds and order of examples, and the rates
# and steps that `SEEDS` = `choose` found for each on a part of the training split (hold_out.py). GRISTMILL_TASKS names the
# directory of the tasks, for `choose` that of hold_out.py. `choose` tries the learning rates in RATES.
set -e
arm=$1 seeds=$2
shift 2
python=${PYTHON:-python}
case $arm in
pretrained) model=(model=runs/encoder) ;;
scratch) model=(model=tiny_modernbert tokenizer=runs/encoder/tokenizer.json model.layers=4 model.width=128 model.heads=4 model.positions=256) ;;
*) echo "ARM: got '$arm', expected pretrained or scratch" >&2 && exit 2 ;;
esac

rate() { # TASK: what `choose` found; tags and spans, for which it was not run, have 2e-3
  case $arm-$1 in
  pretrained-qqp | pretrained-qnli) echo 2.5e-4 ;;
  pretrained-rte | pretrained-mrpc | pretrained-stsb | pretrained-mnli | scratch-rte | scratch-stsb) echo 5e-4 ;;
  pretrained-cola | *-sst2 | scratch-qqp) echo 1e-3 ;;
  scratch-qnli) echo 4e-3 ;;
  *) echo 2e-3 ;;
  esac
}

finetune() { # TASK LENGTH STEPS a.b=value ...
  local task=$1 length=$2 steps=$3
  shift 3
  if [ "$seeds" = choose ]; then
    local rates=${RATES:-5e-4,1e-3,2e-3}
    settings=(run="runs/glue_choice/$arm/$task/$rates" leak=report "sweep={optimizer.learning_rate: [$rates], budget.steps: [$steps]}")
  else
    settings=(run="runs/glue/$arm/$task" seeds="$seeds" budget.steps="$steps" optimizer.learning_rate="$(rate "$task")")
  fi
  "$python" -m trainers finetune "$task" "${model[@]}" "${settings[@]}" encoding.max_length="$length" budget.epochs=null \
    validation.every="$steps" optimizer.weight_decay=0.01 checkpoints.keep=1 log_every=50 "$@"
}

for task in "$@"; do
  case $task in
  cola) finetune "$task" 48 600 head.pooling=mean ;;
  sst2) finetune "$task" 48 1500 head.pooling=mean ;;
  stsb | mrpc) finetune "$task" 96 500 head.pooling=mean ;;
  rte) finetune "$task" 128 240 head.pooling=mean ;;
  qqp | mnli | qnli) finetune "$task" 96 700 head.pooling=mean ;;
  ud_pos | wnut17) finetune "$task" 128 400 ;;
  squad) finetune "$task" 192 300 encoding.stride=64 ;;
  *) echo "TASK: got '$task', expected cola, sst2, stsb, mrpc, rte, qqp, mnli, qnli, ud_pos, wnut17 or squad" >&2 && exit 2 ;;
  esac
done
