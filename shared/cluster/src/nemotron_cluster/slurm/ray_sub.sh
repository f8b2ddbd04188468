# NeMo-RL's own ray.sub keeps Ray, as it is: it reads the variables that are exported here, and the step is its driver.
run_step() {
    local logs shown sub code
    if [ ! -f "$ray_sub" ]; then
        say "ray_sub: there is no $ray_sub on $head: name the one of NeMo-RL's checkout, on a file system that nodes share"
        return 1
    elif [ -z "${SLURM_JOB_ACCOUNT:-}" ]; then
        say "ray_sub: NeMo-RL's ray.sub starts its tasks for an account, and this job has none: add account to the profile"
        return 1
    fi
    export BASE_LOG_DIR=$folder/logs GPUS_PER_NODE=$gpus CPUS_PER_WORKER=$SLURM_CPUS_ON_NODE SLURM_SUBMIT_DIR=$workdir
    export SLURM_EXPORT_ENV=ALL # or its srun would leave the environment behind, as sbatch was told to
    logs=$BASE_LOG_DIR/$SLURM_JOB_ID${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}-logs
    token=$folder/secrets/ray # not local: the trap at the end needs it
    mkdir -p "$logs" "$folder/secrets" && chmod 700 "$folder/secrets" && rm -f "$folder/logs/SAVE" "$logs/driver_exit" || return 1
    (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$token") || return 1
    trap 'rm -f "$token"' EXIT
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token RAY_USAGE_STATS_ENABLED=0
    # A variable of the image comes before one of the job, so the driver sets its own again. It is told to save by a
    # file: a signal would reach Ray as well. Ray's head is a daemon, which Slurm need not find.
    COMMAND="$(declare -p PYTHONPATH HF_HOME NEMOTRON_HOME 2>/dev/null)
        cd $(printf %q "$workdir") || exit 1
        $(printf '%q ' "$python" "${command[@]}") &
        while kill -0 \$! 2>/dev/null; do
            [ ! -e $(printf %q "$folder/logs/SAVE") ] || [ \${told:-no} = yes ] || { told=yes && kill -TERM \$!; }
            sleep 2
        done
        wait \$!
        echo \$? >$(printf %q "$logs/driver_exit")
        $(printf %q "$python") -m ray.scripts.scripts stop --force
        touch $(printf %q "$logs/ENDED")
        exit \$(cat $(printf %q "$logs/driver_exit"))"
    export COMMAND
    tail -n +1 -F "$logs/ray-driver.log" 2>/dev/null &
    shown=$!
    bash "$ray_sub" &
    sub=$!
    while kill -0 "$sub" 2>/dev/null && [ ! -e "$logs/ENDED" ]; do sleep 1; done
    # Where Slurm does not find them, helpers of ray.sub hold it up until they have seen ENDED, which takes a minute.
    for _ in {1..90}; do kill -0 "$sub" 2>/dev/null && sleep 1; done
    ! kill -TERM "$sub" 2>/dev/null || say "ray_sub: it did not end with its driver, and is ended"
    wait "$sub"
    code=$?
    touch "$logs/ENDED"
    kill "$shown"
    [ ! -s "$logs/driver_exit" ] || code=$(<"$logs/driver_exit")
    return "$code"
}
stop_step() { touch "$folder/logs/SAVE"; }
