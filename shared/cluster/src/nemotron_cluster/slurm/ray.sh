# A Ray cluster for the time of one driver: its head and the driver on the first node, a worker on each other one. Each
# writes to a file of its own in logs/, and the driver to the job's log as well. ray_node.py is what runs on the nodes.

# ray_task FIRST COUNT LOG ROLE ARGUMENT...: the same task on each of these nodes; becomes its srun
ray_task() {
    local options=(--relative="$1" --nodes="$2" --ntasks="$2" --ntasks-per-node=1 --overlap --mpi=none --cpu-bind=none)
    [ -z "$3" ] || options+=(--output="$logs/$3.log" --open-mode=append)
    exec "${srun[@]}" "${options[@]}" --kill-on-bad-exit=1 "${inside[@]}" "$python" \
        "$folder/code/nemotron_cluster/slurm/ray_node.py" "$4" "$logs" "${@:5}"
}

# ray_end SECONDS SIGNAL PROCESS...: have these sruns end their tasks, by force where it takes longer
ray_end() {
    local end=$((SECONDS + $1)) process
    kill -"$2" "${@:3}" 2>/dev/null
    for process in "${@:3}"; do
        while kill -0 "$process" 2>/dev/null && ((SECONDS < end)); do sleep 0.2; done
        kill -TERM "$process" 2>/dev/null
    done
    wait "${@:3}"
}

# Have every node write into the folder of logs. Where this node does not find all of the files: say whose, and fail.
# It runs outside any container, which has the folder from its node.
find_canaries() {
    local canaries=$logs/.canaries said missing node tries=5
    rm -rf -- "$canaries" && mkdir -- "$canaries" || return 1
    # shellcheck disable=SC2016
    if said=$(timeout 300 srun --export=ALL --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --overlap --mpi=none \
        --cpu-bind=none sh -c ': >"$1/$SLURMD_NODENAME"' sh "$canaries" 2>&1); then
        said='' tries=30
    fi
    while :; do
        missing=()
        ls "$canaries" >/dev/null # or NFS answers out of its memory
        for node in "${hosts[@]}"; do [ -e "$canaries/$node" ] || missing+=("$node"); done
        if ((${#missing[@]} == 0)); then
            rm -rf -- "$canaries"
            return 0
        fi
        ((tries-- > 0)) || break
        sleep 1
    done
    node=$(IFS=,; echo "${missing[*]}")
    say "error: $head does not find in the shared folder $canaries what these nodes should have written: $node"
    say "  mount it there, leave them out (extra_directives = [\"--exclude=$node\"]), or set remote_job_dir to another folder"
    [ -z "$said" ] || say "  srun says: $said"
    return 1
}

run_step() {
    logs=$folder/logs token=$folder/secrets/ray # not local: the trap at the end needs them
    local lost='' told='' driver='' ray copy code reason
    mkdir -p "$logs" "$folder/secrets" && chmod 700 "$folder/secrets" || return 1
    rm -f "$logs/STARTED_RAY_HEAD" "$logs/ENDED" # of an earlier attempt
    # Whoever reaches Ray's ports could run anything as this user, so it answers only who knows this.
    (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$token") || return 1
    trap 'rm -f "$token"; touch "$logs/ENDED"' EXIT
    trap 'told=yes; [ -z "$driver" ] || kill -USR1 "$driver" 2>/dev/null' USR1
    # Slurm kills this script a while later, perhaps before the driver has saved. So what others look at is said now.
    trap 'touch "$logs/ENDED"; told=yes; [ -z "$driver" ] || kill -USR1 "$driver" 2>/dev/null' TERM
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token RAY_USAGE_STATS_ENABLED=0
    # A busy machine or a slow file system needs longer than Ray's own 20 to 60 seconds.
    export RAY_raylet_start_wait_time_s=${RAY_raylet_start_wait_time_s:-300}
    export RAY_gcs_server_port_wait_time_s=${RAY_gcs_server_port_wait_time_s:-300}
    export RAY_gcs_server_request_timeout_seconds=${RAY_gcs_server_request_timeout_seconds:-180}
    export RAY_gcs_rpc_server_connect_timeout_s=${RAY_gcs_rpc_server_connect_timeout_s:-60}
    export RAY_worker_register_timeout_seconds=${RAY_worker_register_timeout_seconds:-180}
    unset RAY_ADDRESS

    if ((nodes > 1)) && ! find_canaries; then
        [ -z "$told" ] || return 143 # it was ended while they were looked for
        return 1
    fi
    say "Ray: starting a head on $head and $((nodes - 1)) workers; what they say is in $logs"
    SECONDS=0
    # Ray wants 10002 to 19999 for its workers.
    ray_task 0 1 head head "${hosts[-1]}" $((6400 + SLURM_JOB_ID % 500)) &
    ray=($!)
    if ((nodes > 1)); then
        ray_task 1 $((nodes - 1)) worker-%t worker &
        ray+=($!)
    fi
    exec 3> >(trap '' USR1 TERM && exec tee -a "$logs/driver.log")
    copy=$!
    ray_task 0 1 '' driver "$nodes" $((nodes * gpus)) "$python" "${command[@]}" >&3 2>&1 &
    driver=$!
    [ -z "$told" ] || kill -USR1 "$driver"

    # The driver ends, or one of those that it needs.
    while kill -0 "$driver" 2>/dev/null && [ -z "$lost" ]; do
        kill -0 "${ray[0]}" 2>/dev/null || lost="head"
        kill -0 "${ray[-1]}" 2>/dev/null || lost=${lost:-worker}
        sleep 1 &
        wait $!
    done
    [ -z "$lost" ] || ray_end 20 USR1 "$driver"
    wait "$driver"
    code=$?
    if [ -n "$lost" ] && [ -z "$told" ] && ((code)); then
        reason=$(cat "$logs/$lost"*.log | grep '^error: ' | tail -n 1)
        say "Ray: a $lost has ended: ${reason:-see $logs}"
        code=1
    fi
    say "Ray: the driver ended with exit code $code after $SECONDS s; ending the cluster"
    touch "$logs/ENDED"
    ray_end 60 USR2 "${ray[@]}"
    exec 3>&-
    wait "$copy"
    return "$code"
}

# The driver alone: while it saves it needs the others.
stop_step() { kill -USR1 "$step"; }
