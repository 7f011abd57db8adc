#!/bin/bash
# sbatch deploy/training/slurm.sh: two machines with eight GPUs each. Two minutes before the time
# limit all processes save and end, and the job is queued again; it resumes where it stopped.
#SBATCH --job-name=limelight
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

RECIPE=${RECIPE:-wmt14-en-de-big}
RUN=${RUN:-/shared/runs/wmt}  # on a disk that all machines see
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

stopped=0
trap 'stopped=1; kill -TERM "$srun_pid"' TERM
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 --max-restarts 3 \
  --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$HEAD:29500" \
  -m -- limelight train "$RECIPE" --run "$RUN" --train.fsdp &
srun_pid=$!

status=0
wait "$srun_pid" || status=$?
if [ "$stopped" = 1 ]; then
  wait "$srun_pid" || true  # the first wait ended with the signal
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit "$status"
