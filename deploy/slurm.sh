#!/bin/bash
# A Ray cluster inside a Slurm allocation, and one command on it: a build, or training on several workers.
#   sbatch --nodes=4 deploy/slurm.sh python -m pipelines build corpora_configs/web_en.yaml output=/shared/corpora/web_en
#   sbatch --nodes=2 --gpus-per-node=8 deploy/slurm.sh python -m trainers pretrain demo_decoder \
#       corpus=/shared/corpora/web_en run=/shared/runs/first --workers 16
# The same command resumes, so the job may be requeued, cut off by its time limit, and submitted again.
# GRISTMILL is the checkout with its environment, on a file system that all nodes see; its default is where sbatch is called.
#SBATCH --job-name=gristmill
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
(($#)) || { echo "usage: sbatch deploy/slurm.sh python -m MODULE ..." >&2; exit 2; }
cd "${GRISTMILL:-$SLURM_SUBMIT_DIR}"
export PATH="$PWD/.venv/bin:$PATH"
# A token of this job alone, in a file that only its owner reads; other users of the nodes cannot give orders to its Ray.
umask 077
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HOME/.gristmill-token-$SLURM_JOB_ID" RAY_USAGE_STATS_ENABLED=0
export RAY_prestart_worker_first_driver=0  # else a command waits for ever if workers are killed while it joins (ray-project/ray#40131)
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
python -c 'import secrets; print(secrets.token_hex(32))' > "$RAY_AUTH_TOKEN_PATH"
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=600  # seconds for all nodes to come up; Ray's own 30 are few on a busy cluster

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 20000))  # jobs that share a node do not meet
export RAY_ADDRESS="${nodes[0]}:$port"  # what builds and training join
resources=(--num-cpus "$SLURM_CPUS_PER_TASK")
[[ -z "${SLURM_GPUS_ON_NODE:-}" ]] || resources+=(--num-gpus "$SLURM_GPUS_ON_NODE")
# One task a node: the first starts the head and runs the command there, the others join; all end with the command.
srun --kill-on-bad-exit=1 ray symmetric-run --address "$RAY_ADDRESS" --min-nodes "$SLURM_JOB_NUM_NODES" \
  "${resources[@]}" --include-dashboard False -- "$@"
