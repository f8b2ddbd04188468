#!/usr/bin/env bash
# in.sh FOLDER NODE COMMAND...: a command on the head or on a node of the cluster that up.sh made, in the folder of now.
set -euo pipefail
CLUSTER=$(realpath "$1") node=$2 user=()
shift 2
export CLUSTER SLURM_CONF="$CLUSTER/slurm.conf" PATH="$PATH:/usr/sbin:/sbin"
((EUID == 0)) || user=(--user)
read -r pid _ <"$CLUSTER/run/head.pid"
enter=(--net --uts --mount --pid --ipc --wd="$PWD")
[[ $node == head ]] || set -- nsenter -t "$(<"$CLUSTER/run/$node.pid")" "${enter[@]}" "$@"
exec nsenter -t "$pid" "${user[@]}" "${enter[@]}" "$@"
