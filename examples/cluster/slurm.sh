#!/bin/bash
# One training on two nodes with eight GPUs each: sbatch examples/cluster/slurm.sh
#
# The nodes share this folder with its .venv and runs/, and the cache of models (HF_HOME). Submitted again, it resumes the run.
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-gpu=12
#SBATCH --time=24:00:00 --signal=TERM@600
# Ten minutes before its time is over, the run is asked to finish its step and to write a checkpoint: longer than a step takes.

set -eu
export RUN=runs/two-nodes
export PET_NNODES=$SLURM_NNODES PET_MASTER_PORT=29500
PET_MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PET_MASTER_ADDR

# Where the first node fails before it trains, the others would wait for it: hence --kill-on-bad-exit. The others do not end
# with an error before it: it still has to tell why, to Prefect, MLflow and the report.
srun --kill-on-bad-exit=1 bash -c '
    . .venv/bin/activate
    export PET_NODE_RANK=$SLURM_NODEID
    if [ "$PET_NODE_RANK" != 0 ]; then
        grpo join "$RUN" || sleep 300
        exit
    elif [ -e "$RUN/config.json" ]; then
        exec grpo train --resume "$RUN"
    fi
    exec grpo train gsm8k_qwen25_1.5b_80gb training.processes=16 --run-dir "$RUN"
'
