#!/usr/bin/env bash
# A real Slurm for tests: a head and nodes n1, n2, ..., each with a hostname, an address and a process tree of its own.
#   up.sh FOLDER [--nodes N] [--account] [--sshd] [--spank PLUGIN.so] [--confined] [--tied]
#   in.sh FOLDER n1 hostname     a command on the head or on a node
#   down.sh FOLDER
# Everything lives in namespaces, so nothing listens on this machine's interfaces and clusters do not see each other.
# --account: MariaDB and slurmdbd. --sshd: the head answers ssh on 10.77.0.1. --tied: ends when its standard input does.
# --confined: nodes of this machine's own CPUs, which jobs see only as far as they asked for them; by control groups,
# memory too, where those of version 1 can be written, else by the processes' affinity alone.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"
((EUID == 0)) || exec unshare --user --map-root-user --map-auto --mount "$0" "$@"

CLUSTER=$(realpath -m "$1") NODES=2 ACCOUNT='' SSHD='' TIED='' plugin='' cpus=8 select=CR_Core tasks=task/none memory=''
shift
while (($#)); do
    case $1 in
    --nodes) NODES=$2 && shift ;;
    --spank) plugin=$(realpath "$2") && shift ;;
    --account) ACCOUNT=yes ;;
    --sshd) SSHD=yes ;;
    --tied) TIED=yes ;;
    --confined) cpus=$(env -u OMP_NUM_THREADS nproc) select=CR_Core_Memory tasks=task/affinity memory=DefMemPerCPU=200 ;;
    *) echo "unknown option $1" >&2 && exit 2 ;;
    esac
    shift
done
export CLUSTER NODES ACCOUNT SSHD TIED
here=$(dirname "$(realpath "$0")")
mkdir -p "$CLUSTER" && cd "$CLUSTER"
mkdir -p state log run dev own ssh shared
for ((i = 1; i <= NODES; i++)); do mkdir -p "spool/n$i"; done
[[ -d /tmp/ray ]] || mkdir -m 1777 /tmp/ray # every node mounts one of its own over it

# Slurm wants a character device for each GPU. Who may not make one links to one.
for i in {0..7}; do [[ -e dev/nvidia$i ]] || mknod "dev/nvidia$i" c 1 3 2>/dev/null || ln -s /dev/null "dev/nvidia$i"; done
(umask 077 && head -c 1024 /dev/urandom >munge.key)

# There is no name server in there: without these, each look-up of an address waits half a minute for one.
{
    printf '%s\n' "127.0.0.1 localhost" "10.77.0.1 head"
    for ((i = 1; i <= NODES; i++)); do echo "10.77.0.$((10 + i)) n$i"; done
} >hosts
{ grep -v '^hosts:' /etc/nsswitch.conf || true; echo "hosts: files"; } >nsswitch.conf
: >resolv.conf

if [[ $memory && -w /sys/fs/cgroup/cpuset && -w /sys/fs/cgroup/memory ]]; then
    tasks=task/cgroup,task/affinity
    printf '%s\n' CgroupPlugin=cgroup/v1 ConstrainCores=yes ConstrainRAMSpace=yes >cgroup.conf
fi
cat >slurm.conf <<CONF
ClusterName=test
SlurmctldHost=head(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# cred_expire: a requeued job waits for this and a second more; two minutes where a site says nothing
AuthInfo=socket=$CLUSTER/run/munge.socket,cred_expire=5
StateSaveLocation=$CLUSTER/state
SlurmdSpoolDir=$CLUSTER/spool/%n
SlurmctldPidFile=$CLUSTER/run/slurmctld.pid
SlurmdPidFile=$CLUSTER/run/slurmd.%n.pid
SlurmctldLogFile=$CLUSTER/log/slurmctld.log
SlurmdLogFile=$CLUSTER/log/slurmd.%n.log
PlugStackConfig=$CLUSTER/plugstack.conf
# Tracks children of the step only: what a job daemonises outlives it, and a test can see that
ProctrackType=proctrack/linuxproc
TaskPlugin=$tasks
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=$select
$memory
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,requeue_delay=1
SlurmctldParameters=preempt_send_user_signal
# Nodes with more CPUs than this machine has
SlurmdParameters=config_overrides
ReturnToService=2
# A node that is slow because the machine is, is not lost
SlurmdTimeout=30
SlurmctldTimeout=10
MessageTimeout=10
KillWait=60
UnkillableStepTimeout=90
MinJobAge=300
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-$NODES] CPUs=$cpus RealMemory=20000 Gres=gpu:8
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=REQUEUE GraceTime=10
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=20 PreemptMode=OFF
PartitionName=debug Nodes=n1 MaxTime=30 PriorityTier=10
CONF
if [[ $ACCOUNT ]]; then
    cat >>slurm.conf <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=head
# This plugin does not read AuthInfo: its "password" is munge's socket
AccountingStoragePass=$CLUSTER/run/munge.socket
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
CONF
    (umask 077 && cat >slurmdbd.conf) <<CONF
AuthType=auth/munge
AuthInfo=socket=$CLUSTER/run/munge.socket
DbdHost=head
DbdAddr=10.77.0.1
SlurmUser=root
LogFile=$CLUSTER/log/slurmdbd.log
PidFile=$CLUSTER/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=3306
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
CommitDelay=1
CONF
fi
echo "NodeName=n[1-$NODES] Name=gpu Flags=nvidia_gpu_env File=$CLUSTER/dev/nvidia[0-7]" >gres.conf
echo "PMIxCliTmpDirBase=$CLUSTER/own" >mpi.conf # a folder that every node has for itself
echo "${plugin:+required $plugin}" >plugstack.conf

rm -f run/ready
if [[ $TIED ]]; then exec 3<&0; else exec 3</dev/null; fi
setsid unshare --net --uts --mount --pid --ipc --fork --kill-child "$here/head.sh" <&3 >log/head.log 2>&1 &
for ((i = 0; i < 3000; i++)); do
    [[ ! -e run/ready ]] || exit 0
    kill -0 $! 2>/dev/null || break
    sleep 0.1
done
tail -n 20 log/* >&2
[[ ! -e run/head.pid ]] || "$here/down.sh" .
exit 1
