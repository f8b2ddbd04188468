#!/usr/bin/env bash
# A Ray cluster over the nodes of a Slurm job, for the time of one driver, whose exit code is the answer:
#   ray.sh FOLDER GPUS_PER_NODE PYTHON [OPTION OF SRUN, OR WORD BEFORE PYTHON]... -- DRIVER...
# The head is on the first node, and so is the driver. What they say is in FOLDER/logs. TERM tells the driver to save.
set -u
folder=$1 gpus=$2 python=$3
shift 3
before=()
while [[ $1 != -- ]]; do before+=("$1") && shift; done
shift
logs=$folder/logs token=$folder/secrets/ray task=$(dirname "$(realpath "$0")")/ray_node.py
nodes=$SLURM_JOB_NUM_NODES
peer=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)

say() { echo "[ray +${SECONDS}s] $*"; }
running() { kill -0 "$1" 2>/dev/null; }
on_nodes() { # on_nodes FIRST COUNT LOG ROLE ARGUMENT...: the same task on each of these nodes
    local where=(--relative="$1" --nodes="$2" --ntasks="$2" --ntasks-per-node=1) output=()
    [[ -z $3 ]] || output=(--output="$logs/$3.log" --open-mode=append)
    # exec: the process that bash knows is srun itself
    exec srun --overlap --export=ALL --mpi=none --cpu-bind=none --kill-on-bad-exit=1 "${where[@]}" "${output[@]}" \
        "${before[@]}" "$python" "$task" "$4" "$folder" "${@:5}"
}
leave() { # leave SECONDS PROCESS...: ask sruns to end their tasks, and kill those that take longer
    local end=$((SECONDS + $1)) process
    shift
    kill -USR1 "$@" 2>/dev/null
    for process; do
        while running "$process" && ((SECONDS < end)); do sleep 0.2; done
        ! running "$process" || kill -TERM "$process"
    done
    wait "$@"
}

mkdir -p "$logs" "$folder/secrets" && chmod 700 "$folder/secrets" || exit 1
rm -f "$logs/STARTED_RAY_HEAD" "$logs/ENDED" # of an earlier start of the same job
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$token.new" && mv "$token.new" "$token") || exit 1
trap 'rm -f "$token"; touch "$logs/ENDED"' EXIT
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token RAY_USAGE_STATS_ENABLED=0
# A busy machine or a slow file system takes longer than Ray's own 20 to 60 seconds.
export RAY_raylet_start_wait_time_s=${RAY_raylet_start_wait_time_s:-300}
export RAY_gcs_server_port_wait_time_s=${RAY_gcs_server_port_wait_time_s:-300}
export RAY_gcs_server_request_timeout_seconds=${RAY_gcs_server_request_timeout_seconds:-180}
export RAY_worker_register_timeout_seconds=${RAY_worker_register_timeout_seconds:-180}
export RAY_gcs_rpc_server_connect_timeout_s=${RAY_gcs_rpc_server_connect_timeout_s:-60}
unset RAY_ADDRESS RAY_TMPDIR # those of the machine that submitted

say "one head and $((nodes - 1)) workers; logs in $logs"
on_nodes 0 1 head head "$peer" &
head=$! workers=$!
if ((nodes > 1)); then
    on_nodes 1 $((nodes - 1)) worker-%t worker &
    workers=$!
fi
exec 3> >(trap '' TERM INT USR1 && exec tee -a "$logs/driver.log")
copy=$!
on_nodes 0 1 '' driver "$nodes" $((nodes * gpus)) "$@" >&3 2>&1 &
driver=$!
asked=
trap 'asked=yes; kill -USR1 "$driver" 2>/dev/null' TERM USR1 INT HUP

lost=
while running "$driver" && [[ ! $lost ]]; do
    running "$workers" || lost="worker"
    running "$head" || lost="head"
    sleep 1 &
    wait $!
done
if [[ $lost ]]; then leave 20 "$driver"; fi
wait "$driver"
code=$?
if [[ $lost && $code != 0 && ! $asked ]]; then
    reason=$(cat "$logs/$lost"*.log | grep '^\[ray\] error:' | tail -n 1)
    say "a $lost of the Ray cluster has ended: ${reason:-$(tail -qn 1 "$logs/$lost"*.log)}"
    code=1
fi
say "the driver has ended with $code; ending Ray"
touch "$logs/ENDED"
leave 60 "$head" "$workers" 2>/dev/null
exec 3>&-
wait "$copy"
say "no Ray is left"
exit "$code"
