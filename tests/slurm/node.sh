#!/usr/bin/env bash
# node.sh n1, on the head: a node with namespaces of its own. The death of its process 1 is the loss of the node.
set -euo pipefail
export SLURM_CONF="$CLUSTER/slurm.conf"
node=$1 pid=$CLUSTER/run/$1.pid link=veth${1#n}
if [[ ${2:-} == inside ]]; then
    read -r -a stat </proc/self/stat # of the head's /proc, where this process has the number that the head needs
    mount -t proc proc /proc
    mount -t tmpfs tmpfs /tmp/ray # or launch scripts that clear it would clear this machine's
    mount -t tmpfs tmpfs "$CLUSTER/own"
    hostname "$node"
    ip link set lo up
    echo "${stat[0]}" >"$pid.new" && mv "$pid.new" "$pid"
    until ip link show eth0 &>/dev/null; do sleep 0.05; done
    ip addr add "10.77.0.$((10 + ${node#n}))/24" dev eth0
    ip link set eth0 up
    # As a service manager does. When a daemon has ended, the log of the node says so, and the job that ran is queued again.
    while :; do
        slurmd -D || echo "slurmd of $node ended with $?"
        sleep 1
    done
fi
exec >>"$CLUSTER/log/$node.log" 2>&1
rm -f "$pid"
ip link del "$link" 2>/dev/null || true # of a node that was lost; the kernel takes its time to clear up
unshare --net --uts --mount --pid --ipc --fork --kill-child "$0" "$node" inside </dev/null &
until [[ -e $pid ]]; do
    kill -0 $! || exit 1
    sleep 0.05
done
ip link add "$link" type veth peer name eth0 netns "$(<"$pid")"
ip link set "$link" master br0 up
