#!/bin/bash
# The fine-tuning runs of docs/glue.md: bash docs/glue/glue.sh ARM SEEDS TASK ...
#
# ARM is `pretrained` or `scratch` (new weights). Both have the same settings, seeds and order of examples. The encoder is
# trained on every task but DialogSum, which is the GPT's. GRISTMILL_TASKS names the directory of the tasks.
set -e
arm=$1 seeds=$2
shift 2
python=${PYTHON:-python}
case $arm in
pretrained)
  encoder=(model=runs/encoder)
  gpt=(model=runs/gpt)
  ;;
scratch)
  encoder=(model=tiny_modernbert tokenizer=runs/encoder/tokenizer.json model.layers=4 model.width=128 model.heads=4 model.positions=256)
  gpt=(model=tiny_gpt2 tokenizer=runs/gpt/tokenizer.json model.layers=3 model.width=128 model.heads=4 model.positions=256)
  ;;
*) echo "ARM: got '$arm', expected pretrained or scratch" >&2 && exit 2 ;;
esac

finetune() { # TASK LENGTH STEPS model=... a.b=value ...
  local task=$1 length=$2 steps=$3
  shift 3
  "$python" -m trainers finetune "$task" "$@" seeds="$seeds" run="runs/glue/$arm/$task" encoding.max_length="$length" \
    budget.epochs=null budget.steps="$steps" validation.every="$steps" optimizer.weight_decay=0.01 \
    checkpoints.keep=1 log_every=50
}

for task in "$@"; do
  case $task in
  cola | sst2) finetune "$task" 48 600 "${encoder[@]}" optimizer.learning_rate=2e-3 head.pooling=mean ;;
  stsb | mrpc) finetune "$task" 96 500 "${encoder[@]}" optimizer.learning_rate=2e-3 head.pooling=mean ;;
  rte) finetune "$task" 128 240 "${encoder[@]}" optimizer.learning_rate=2e-3 head.pooling=mean ;;
  qqp | mnli | qnli) finetune "$task" 96 700 "${encoder[@]}" optimizer.learning_rate=2e-3 head.pooling=mean ;;
  wnut17 | ud_pos) finetune "$task" 128 300 "${encoder[@]}" optimizer.learning_rate=1e-3 encoding.stride=32 ;;
  squad) finetune squad 192 300 "${encoder[@]}" optimizer.learning_rate=1e-3 encoding.stride=64 ;;
  dialogsum) finetune dialogsum 256 100 "${gpt[@]}" optimizer.learning_rate=1e-3 ;;
  *) echo "TASK: got '$task'" >&2 && exit 2 ;;
  esac
done
