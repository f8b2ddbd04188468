# ---- From here on the same in every job: body.sh of nemotron_cluster.slurm. ----
#
# A job has several attempts where its time limit comes before its end, where it is preempted, or where a node is lost.
# Slurm tells this script with USR1 some time before the first two; what is running saves then, and the job is queued
# again. Only the last attempt writes exit_code and removes the secrets.
#
# What stands above defines `run_step`, which ends with the step's exit code, and may define a `stop_step` of its own.
# Both find: folder, python, command, nodes, processes, gpus, lead, srun, inside, and from here hosts, head, port, say.

attempt=$((${SLURM_RESTART_COUNT:-0} + 1))
asked=     # "yes" as soon as the step was asked to save
fate=      # what Slurm does with this job by itself: "cancelled", "queued" again, "late" at its time limit, "unknown"
over=      # "yes" when nothing is left to do
step=      # process id of the step
signalled= # "yes" where a signal came while the step was waited for

say() { printf '[job] %(%H:%M:%S)T %s\n' -1 "$*"; }

# The last training step that the log tells of, whichever attempt it was; 0 before the first.
last_step() {
    local found
    found=$(grep -aoiE '(step|iteration) *[0-9]+ */ *[0-9]+' "$folder/log.txt" | tail -n 1 | grep -oE '[0-9]+' | head -n 1)
    echo "$((10#${found:-0}))"
}

# Keep how an attempt ended: "stopped 120", "failed 180", "lost 180" with the step it had come to.
note() { echo "$1 $(last_step)" >>"$folder/attempts"; }

# Why another attempt would not come further; nothing where it might.
hopeless() {
    awk '
        $1 == "begun" { next }
        {
            further = $2 > before
            bad = $1 == "stopped" ? 0 : (bad && !further ? bad + 1 : 1)
            idle = further ? 0 : idle + 1
            before = $2; how = $1
        }
        END {
            if (how == "failed" && before == 0) print "it failed before its first training step"
            else if (bad >= 2) print "its last two attempts broke off at step " before
            else if (idle >= 5) print "five attempts in a row came no further than step " before
        }' "$folder/attempts"
}

# The job has ended: say how. The first word on it counts.
close() {
    [ -z "$over" ] || return 0
    over=yes
    rm -rf -- "$folder/secrets"
    printf '%s\n' "$1" >"$folder/.exit_code" && mv -f -- "$folder/.exit_code" "$folder/exit_code"
    say "the job ended with exit code $1"
}

# Another attempt. Slurm may have queued the job by itself in the meantime.
again() {
    local answer
    trap '' USR1 TERM # which is how Slurm ends this attempt
    for _ in 1 2 3 4 5; do
        if answer=$(scontrol requeue "$SLURM_JOB_ID" 2>&1) || [[ $answer == *ending* ]]; then
            say "queued again: the next attempt continues from the last checkpoint"
            over=yes
            exit 0
        fi
        sleep 3
    done
    say "it could not be queued again: $answer"
}

# Ask every process of the step to save and end. A step that is only just starting has none yet.
if ! declare -F stop_step >/dev/null; then
    stop_step() {
        until scancel --signal=TERM "$SLURM_JOB_ID" || ! kill -0 "$step" 2>/dev/null; do sleep 2; done
    }
fi

# USR1: the time limit or a preemption is near.
on_warning() {
    signalled=yes
    [ -z "$asked$fate" ] || return 0
    asked=yes
    say "time limit or preemption ahead: asking the step to save"
    [ -z "$step" ] || stop_step
}

# TERM: Slurm ends this attempt, and has told the step as well. Why, only Slurm knows; it kills after KillWait seconds.
on_end() {
    local facts
    signalled=yes
    [ -z "$fate" ] || return 0
    fate=unknown
    for _ in 1 2 3; do
        facts=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null) && break
        sleep 1
    done
    if [[ $facts =~ Restarts=([0-9]+) ]]; then
        if ((BASH_REMATCH[1] >= attempt)); then
            fate=queued
        elif [[ $facts == *Reason=TimeLimit* ]]; then
            fate=late
        else
            fate=cancelled
        fi
    fi
    say "ended by Slurm ($fate): the step saves what it has"
    [ "$fate" != cancelled ] || close 130 # at once: the step may take longer than this script is given
}

# A step that was asked to: 143 where it had not begun to listen, or where srun ends a task that is last to leave.
was_stopped() { ((code == 130 || code == 143)); }

# A preempted step is told by Slurm itself where the site does not pass the warning on.
preempted() { scontrol show job "$SLURM_JOB_ID" | grep -q 'PreemptTime=[0-9]'; }

# A node that was lost and is back is sent, a minute late, what was meant for the step that had this number before.
echoes() { ((attempt > 1 && SECONDS < 300)); }

# A line of the setup has failed, or left with `exit`.
on_exit() {
    local code=$? line=$BASH_COMMAND
    [ -z "$over" ] || return 0
    if [ "$fate" = queued ] || [ "$fate" = unknown ]; then
        note lost
    else
        say "left with code $code before the step began${setting_up:+, in setup_lines: $line}"
        close "$((code ? code : 1))"
        exit "$((code ? code : 1))"
    fi
}

trap on_warning USR1
trap on_end TERM
trap on_exit EXIT

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts[0]}
port=$((15000 + SLURM_JOB_ID % 15000)) # of its own: jobs may share a node
say "started on $(IFS=,; echo "${hosts[*]}"), attempt $attempt"

rm -f -- "$folder/exit_code"
touch "$folder/attempts"
if [[ $(tail -n 1 "$folder/attempts") == begun* ]]; then
    note lost # with its node
    reason=$(hopeless)
    if [ -n "$reason" ]; then
        say "not tried again: $reason"
        exit 1
    fi
fi
echo "begun $attempt" >>"$folder/attempts"

set +x # nothing of the secrets is echoed, whatever a profile of the shell says
if [ -e "$folder/secrets/env" ]; then
    # shellcheck disable=SC1091
    . "$folder/secrets/env"
elif "$has_secrets"; then
    say "the secrets of this job are gone, which happens when it has ended: submit it anew"
    exit 1
fi

setting_up=yes
set -e
setup
set +e +x +u
setting_up=
cd -- "$workdir" || exit 1
if "$force" && [ ! -e "$folder/begun" ]; then command+=(--force); fi
export PYTHONPATH="$folder/code${PYTHONPATH:+:$PYTHONPATH}"
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=$lead # seconds that torchrun gives its processes to save

code=130
if [ -z "$asked$fate" ]; then
    say "the step begins"
    touch "$folder/begun"
    # It outlives the signals that come to this script's whole process group, and tells how it ended.
    (
        trap : USR1 TERM
        run_step
    ) &
    step=$!
    while :; do
        signalled=
        wait "$step"
        code=$?
        [ -n "$signalled" ] || break
    done
    say "the step ended with exit code $code"
fi

# Where a node is lost, Slurm ends the step first and tells this script last.
if [ -z "$asked$fate" ] && was_stopped; then
    for _ in 1 2 3 4 5; do
        sleep 1
        [ -z "$fate" ] || break
        if ! scontrol show job "$SLURM_JOB_ID" | grep -q 'JobState=RUNNING'; then
            on_end
            break
        fi
    done
fi

case $fate in
    cancelled) exit 130 ;;
    queued | unknown) # the next attempt, if there is one, needs everything
        if was_stopped; then note stopped; else note lost; fi
        over=yes
        exit "$code"
        ;;
esac
if [ "$code" = 0 ]; then
    close 0
    exit 0
fi
if [ -n "$asked$fate" ] || { was_stopped && { preempted || echoes; }; }; then
    code=130
    note stopped
elif was_stopped; then # by hand, such as with scancel --signal=TERM
    close 130
    exit 130
else
    note failed
fi
reason=$(hopeless)
if [ -n "$reason" ]; then
    say "not queued again: $reason"
elif "$requeue"; then
    again
fi
close "$code"
exit "$code"
