#!/bin/bash -l
#SBATCH --job-name=super3-sft
#SBATCH --account=llm
#SBATCH --partition=batch
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --chdir=/lustre/me/jobs/20261123-101500-super3-sft-1f0c
#SBATCH --output=/lustre/me/jobs/20261123-101500-super3-sft-1f0c/log.txt
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#SBATCH --dependency=afterok:41:42
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --requeue
#SBATCH --exclusive

# shellcheck disable=SC2016,SC2034,SC2054,SC2317
folder=/lustre/me/jobs/20261123-101500-super3-sft-1f0c
workdir=/lustre/me/jobs/20261123-101500-super3-sft-1f0c
python=python3
command=(-m stages.sft.train -c /lustre/me/jobs/20261123-101500-super3-sft-1f0c/config.yaml)
nodes=2
processes=8 # on each node
gpus=8 # on each node
lead=300 # seconds before the end in which the step saves
force=false # at the first attempt only: later ones continue
requeue=true
has_secrets=true
export NEMOTRON_HOME=/lustre/me/.nemotron
export PYTHONUNBUFFERED=1
srun=( # how tasks start
    srun
    --export=ALL
    --cpu-bind=none
    '--container-image=nvcr.io#nvidia/nemo:25.11'
    --container-mounts=/lustre/me/jobs/20261123-101500-super3-sft-1f0c:/lustre/me/jobs/20261123-101500-super3-sft-1f0c,/lustre/me/.nemotron:/lustre/me/.nemotron,/lustre:/lustre,/data:/data:ro
    --container-workdir=/lustre/me/jobs/20261123-101500-super3-sft-1f0c
    --container-env=PYTHONPATH,NEMOTRON_HOME,PYTHONUNBUFFERED,HF_TOKEN
    --no-container-mount-home
)
inside=( # what stands before a program that runs in a container
)

# The profile's setup_lines.
setup() {
module load cuda
}

# One task on each node, which starts that node's processes.
run_step() {
    "${srun[@]}" --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --kill-on-bad-exit=1 --label \
        "${inside[@]}" "$python" -m nemotron_shared.engine.torchrun \
        --nnodes="$nodes" --nproc-per-node="$processes" --rdzv-id="$SLURM_JOB_ID.$attempt" \
        --rdzv-backend=c10d --rdzv-endpoint="$head:$port" "${command[@]}"
}
