#!/bin/bash
# The fine-tuning runs of docs/glue.md: bash docs/glue/glue.sh ARM SEEDS TASK ...
#
# ARM is `pretrained` (runs/encoder) or `scratch` (new weights). Both have the same settings, seeds and order of examples.
# GRISTMILL_TASKS names the directory of the tasks.
set -e
arm=$1 seeds=$2
shift 2
python=${PYTHON:-python}
case $arm in
pretrained) model=(model=runs/encoder) ;;
scratch) model=(model=tiny_modernbert tokenizer=runs/encoder/tokenizer.json model.layers=4 model.width=128 model.heads=4 model.positions=256) ;;
*) echo "ARM: got '$arm', expected pretrained or scratch" >&2 && exit 2 ;;
esac

finetune() { # TASK LENGTH STEPS a.b=value ...
  local task=$1 length=$2 steps=$3
  shift 3
  "$python" -m trainers finetune "$task" "${model[@]}" seeds="$seeds" run="runs/glue/$arm/$task" encoding.max_length="$length" \
    budget.epochs=null budget.steps="$steps" validation.every="$steps" optimizer.learning_rate=2e-3 optimizer.weight_decay=0.01 \
    checkpoints.keep=1 log_every=50 "$@"
}

for task in "$@"; do
  case $task in
  cola | sst2) finetune "$task" 48 600 head.pooling=mean ;;
  stsb | mrpc) finetune "$task" 96 500 head.pooling=mean ;;
  rte) finetune "$task" 128 240 head.pooling=mean ;;
  qqp | mnli | qnli) finetune "$task" 96 700 head.pooling=mean ;;
  ud_pos | wnut17) finetune "$task" 128 400 ;;
  squad) finetune "$task" 192 300 encoding.stride=64 ;;
  *) echo "TASK: got '$task', expected cola, sst2, stsb, mrpc, rte, qqp, mnli, qnli, ud_pos, wnut17 or squad" >&2 && exit 2 ;;
  esac
done
