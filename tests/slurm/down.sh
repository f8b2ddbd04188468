#!/usr/bin/env bash
# down.sh FOLDER: ends the head's process 1, with which the kernel ends every process of the cluster. Control groups outlive it.
set -euo pipefail
read -r pid start <"$1/run/head.pid"
alive() { # the same process, not a later one that was given its number
    local stat
    read -r -a stat 2>/dev/null <"/proc/$pid/stat" && [[ ${stat[21]} == "$start" ]]
}
! alive || kill -9 "$pid"
while alive; do sleep 0.02; done
[[ ! -e $1/cgroup.conf ]] || find /sys/fs/cgroup/*/slurm_n[0-9]* -depth -type d -delete 2>/dev/null || true
