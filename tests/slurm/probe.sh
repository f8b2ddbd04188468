#!/usr/bin/env bash
# Can up.sh work here? Says what is missing, and is false.
set -uo pipefail
export PATH="$PATH:/usr/sbin:/sbin"
for program in slurmctld slurmd munged mariadbd slurmdbd sshd ip unshare nsenter; do
    command -v "$program" >/dev/null || { echo "$program is not installed" && exit 1; }
done
user=()
((EUID == 0)) || user=(--user --map-root-user --map-auto)
# shellcheck disable=SC2016
said=$(unshare "${user[@]}" --net --uts --mount --pid --ipc --fork --kill-child sh -c '
    mount -t proc proc /proc && hostname probe && mount -t tmpfs tmpfs /mnt && ip link add br0 type bridge &&
    ip link add veth0 type veth peer name veth1 && ip link set veth0 master br0 up' 2>&1) ||
    { echo "namespaces with a network of their own are not allowed here: ${said//$'\n'/ }" && exit 1; }
