#!/bin/bash
# The fine-tuning runs of docs/glue.md: bash docs/glue/glue.sh ARM SEEDS TASK ...
#
# ARM is `pretrained` (runs/gpt) or `scratch` (new weights). Both have the same settings, seeds and order of examples.
# GRISTMILL_TASKS names the directory of the tasks.
set -e
arm=$1 seeds=$2
shift 2
python=${PYTHON:-python}
case $arm in
pretrained) model=(model=runs/gpt) ;;
scratch) model=(model=tiny_gpt2 tokenizer=runs/gpt/tokenizer.json model.layers=2 model.width=128 model.heads=4 model.positions=256 model.initializer_range=0.02) ;;
*) echo "ARM: got '$arm', expected pretrained or scratch" >&2 && exit 2 ;;
esac

finetune() { # TASK LENGTH STEPS a.b=value ...
  local task=$1 length=$2 steps=$3
  shift 3
  "$python" -m trainers finetune "$task" "${model[@]}" seeds="$seeds" run="runs/glue/$arm/$task" encoding.max_length="$length" \
    budget.epochs=null budget.steps="$steps" validation.every="$steps" optimizer.learning_rate=1e-3 optimizer.weight_decay=0.01 \
    checkpoints.keep=1 log_every=50 "$@"
}

for task in "$@"; do
  case $task in
  cola | sst2) finetune "$task" 48 300 head.pooling=mean ;;
  stsb) finetune stsb 64 250 head.pooling=mean ;;
  mrpc | rte | qqp | mnli | qnli) finetune "$task" 64 150 head.pooling=mean ;;
  wnut17 | ud_pos) finetune "$task" 128 150 encoding.stride=32 ;;
  squad) finetune squad 192 150 encoding.stride=64 ;;
  dialogsum) finetune dialogsum 256 50 ;;
  *) echo "TASK: got '$task'" >&2 && exit 2 ;;
  esac
done
