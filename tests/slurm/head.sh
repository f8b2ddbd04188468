#!/usr/bin/env bash
# Process 1 of a cluster's head (started by up.sh). When it dies, the kernel ends everything on every node.
set -euo pipefail
export SLURM_CONF="$CLUSTER/slurm.conf"
here=$(dirname "$(realpath "$0")")
cd "$CLUSTER"

# This is still the /proc outside, and knows which number this process has there; with its start, nobody else has both.
read -r -a stat </proc/self/stat
echo "${stat[0]} ${stat[21]}" >run/head.pid
mount -t proc proc /proc
hostname head
# The nodes inherit these. Where resolv.conf is a link to nowhere, there is nothing to hide.
for file in hosts nsswitch.conf resolv.conf; do
    [[ ! -e /etc/$file ]] || mount --bind "$file" "$(realpath "/etc/$file")"
done
ip link set lo up
ip link add br0 type bridge
ip addr add 10.77.0.1/24 dev br0
ip link set br0 up

started=()
start() {
    "$@" </dev/null &
    started+=($!)
}
until_it() {
    until "$@" &>/dev/null; do
        for pid in "${started[@]}"; do kill -0 "$pid" || exit 1; done # the log says why it has ended
        sleep 0.1
    done
}

start munged --foreground --force --key-file="$CLUSTER/munge.key" --socket="$CLUSTER/run/munge.socket" \
    --pid-file="$CLUSTER/run/munged.pid" --log-file="$CLUSTER/log/munged.log" --seed-file="$CLUSTER/run/munged.seed"
until_it test -S run/munge.socket

if [[ $SSHD ]]; then
    # /etc/ssh is the cluster's own, so that every ssh in it knows the head's key, and nothing of this machine is read.
    for key in host user; do [[ -e ssh/$key ]] || ssh-keygen -q -t ed25519 -N '' -C "$key" -f "ssh/$key"; done
    echo "10.77.0.1,head $(<ssh/host.pub)" >ssh/ssh_known_hosts
    echo "root:*:1::::::" >ssh/shadow # a login by key wants to see that root's is not locked
    mount --bind ssh/shadow /etc/shadow
    mount --bind ssh /etc/ssh
    mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd
    cat >ssh/sshd_config <<CONF
ListenAddress 10.77.0.1
HostKey /etc/ssh/host
AuthorizedKeysFile /etc/ssh/user.pub
PasswordAuthentication no
StrictModes no
PidFile none
SetEnv SLURM_CONF=$SLURM_CONF PATH=$PATH
Subsystem sftp internal-sftp
CONF
    start "$(command -v sshd)" -D -e
fi

if [[ $ACCOUNT ]]; then
    mariadb-install-db --no-defaults --user=root --datadir="$CLUSTER/mysql" --skip-test-db \
        --auth-root-authentication-method=normal >log/install-db.log 2>&1
    start mariadbd --no-defaults --user=root --datadir="$CLUSTER/mysql" --socket="$CLUSTER/run/mysql.socket" \
        --pid-file="$CLUSTER/run/mysql.pid" --bind-address=127.0.0.1 --innodb-buffer-pool-size=64M \
        --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0
    sql=(mariadb --no-defaults -uroot -S "$CLUSTER/run/mysql.socket" -e)
    until_it "${sql[@]}" "select 1"
    "${sql[@]}" "create database slurm_acct; create user slurm@localhost identified by 'slurm';
        create user slurm@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct.* to slurm@localhost;
        grant all on slurm_acct.* to slurm@'127.0.0.1'"
    start slurmdbd -D
    until_it sacctmgr -n show cluster
    sacctmgr -i add cluster test
    sacctmgr -i add account demo Cluster=test Description=demo Organization=demo
    sacctmgr -i add user root Account=demo DefaultAccount=demo || true # root is there from the beginning
    sacctmgr -i modify user root set DefaultAccount=demo || true
fi
start slurmctld -D
for ((i = 1; i <= NODES; i++)); do "$here/node.sh" "n$i" </dev/null & done
all_idle() { [[ $(sinfo -h -N -p batch -t idle -o %N 2>/dev/null | wc -l) == "$NODES" ]]; }
until_it all_idle
touch run/ready
if [[ $TIED ]]; then cat >/dev/null; else sleep infinity; fi
