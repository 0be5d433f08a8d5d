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

finetune() { # TASK LENGTH STEPS
  "$python" -m trainers finetune "$1" "${model[@]}" seeds="$seeds" run="runs/glue/$arm/$1" encoding.max_length="$2" head.pooling=mean \
    budget.epochs=null budget.steps="$3" validation.every="$3" optimizer.learning_rate=2e-3 optimizer.weight_decay=0.01 \
    checkpoints.keep=1 log_every=50
}

for task in "$@"; do
  case $task in
  cola | sst2) finetune "$task" 48 600 ;;
  stsb | mrpc) finetune "$task" 96 500 ;;
  rte) finetune "$task" 128 240 ;;
  qqp | mnli | qnli) finetune "$task" 96 700 ;;
  *) echo "TASK: got '$task', expected cola, sst2, stsb, mrpc, rte, qqp, mnli or qnli" >&2 && exit 2 ;;
  esac
done
