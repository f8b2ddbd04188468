# NeMo-RL's own ray.sub keeps Ray, as it is: it reads the variables that are exported here, and the step is its driver.
run_step() {
    # Not local: the trap at the end needs token. Each attempt has its own folder: one version of ray.sub names its folder
    # in it JOB-logs at every attempt, and would end at once by the ENDED of the attempt before; another JOB-1-logs.
    base=$folder/logs$( ((attempt == 1)) || echo "/attempt-$attempt") token=$folder/secrets/ray
    local shown sub code each
    if [ ! -f "$ray_sub" ]; then
        say "ray_sub: there is no $ray_sub on $head: name the one of NeMo-RL's checkout, on a file system that nodes share"
        return 1
    elif [ -z "${SLURM_JOB_ACCOUNT:-}" ]; then
        say "ray_sub: NeMo-RL's ray.sub starts its tasks for an account, and this job has none: add account to the profile"
        return 1
    fi
    export BASE_LOG_DIR=$base GPUS_PER_NODE=$gpus SLURM_SUBMIT_DIR=$workdir
    # All that this job has of a node. One version of ray.sub would ask for 16 for each GPU, whether they are there or not.
    export CPUS_PER_WORKER=${CPUS_PER_WORKER:-$SLURM_CPUS_ON_NODE}
    export SLURM_EXPORT_ENV=ALL # or its srun would leave the environment behind, as sbatch was told to
    mkdir -p "$base" "$folder/secrets" && chmod 700 "$folder/secrets" && rm -f "$folder/logs/SAVE" || return 1
    (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$token") || return 1
    trap 'rm -f "$token"' EXIT
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token RAY_USAGE_STATS_ENABLED=0
    # A variable of the image comes before one of the job, so the driver sets its own again. A file asks it to save:
    # a signal would reach Ray as well. Ray's head is a daemon, which Slurm need not find.
    COMMAND="$(declare -p PYTHONPATH HF_HOME NEMOTRON_HOME 2>/dev/null)
        cd $(printf %q "$workdir") || exit 1
        $(printf '%q ' "$python" "${command[@]}") &
        while kill -0 \$! 2>/dev/null; do
            [ ! -e $(printf %q "$folder/logs/SAVE") ] || [ \${told:-no} = yes ] || { told=yes && kill -TERM \$!; }
            sleep 2
        done
        wait \$!
        echo \$? >$(printf %q "$base/driver_exit")
        $(printf %q "$python") -m ray.scripts.scripts stop --force
        exit \$(cat $(printf %q "$base/driver_exit"))"
    export COMMAND
    (
        until compgen -G "$base/*-logs/ray-driver.log" >/dev/null; do sleep 1; done
        exec tail -n +1 -F "$base"/*-logs/ray-driver.log 2>/dev/null
    ) &
    shown=$!
    bash "$ray_sub" &
    sub=$!
    while kill -0 "$sub" 2>/dev/null && [ ! -s "$base/driver_exit" ]; do sleep 1; done
    # Helpers of ray.sub, which Slurm does not find everywhere, end everything at ENDED, for which they look each minute.
    for each in "$base"/*-logs; do [ ! -d "$each" ] || touch "$each/ENDED"; done
    for _ in {1..90}; do kill -0 "$sub" 2>/dev/null && sleep 1; done
    ! kill -TERM "$sub" 2>/dev/null || say "ray_sub: it did not end with its driver, and is ended"
    wait "$sub"
    code=$?
    sleep 2 # for the driver's last lines
    kill "$shown"
    [ ! -s "$base/driver_exit" ] || code=$(<"$base/driver_exit")
    return "$code"
}
stop_step() { touch "$folder/logs/SAVE"; }
