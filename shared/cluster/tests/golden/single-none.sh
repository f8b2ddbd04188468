#!/bin/bash -l
#SBATCH --job-name=super3-sft
#SBATCH --account=llm
#SBATCH --partition=batch
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --chdir=/lustre/me/jobs/20261123-101500-super3-sft-1f0c
#SBATCH --output=/lustre/me/jobs/20261123-101500-super3-sft-1f0c/log.txt
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#SBATCH --dependency=afterok:41:42
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --requeue

# shellcheck disable=SC2016,SC2034,SC2054,SC2317
folder=/lustre/me/jobs/20261123-101500-super3-sft-1f0c
workdir=/lustre/me/jobs/20261123-101500-super3-sft-1f0c
python=python3
command=(-m stages.sft.train -c /lustre/me/jobs/20261123-101500-super3-sft-1f0c/config.yaml)
nodes=1
processes=1 # on each node
gpus=0 # on each node
lead=300 # seconds before the end in which the step saves
force=false # at the first attempt only: later ones continue
requeue=true
has_secrets=true
export NEMOTRON_HOME=/lustre/me/.nemotron
export PYTHONUNBUFFERED=1
srun=( # how tasks start
    srun
    --export=ALL
    --cpus-per-task=4
)
inside=( # what stands before a program that runs in a container
)

# The profile's setup_lines.
setup() {
module load cuda
}

# One process.
run_step() {
    "${srun[@]}" --nodes=1 --ntasks=1 "${inside[@]}" "$python" "${command[@]}"
}
