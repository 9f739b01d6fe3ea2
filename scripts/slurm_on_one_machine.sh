#!/usr/bin/env bash
# A real Slurm on one machine, for tests: slurm_on_one_machine.sh up DIR [NODES] | down DIR
# As root; no systemd, cgroup, munge or database is needed. Packages: slurmctld slurmd slurm-client (Debian 12: Slurm 22.05).
# Afterwards: export SLURM_CONF=DIR/slurm.conf. Two partitions: `ci`, whose jobs `high` preempts.
set -euo pipefail
command=$1 dir=$2 nodes=${3:-2}
host=$(hostname -s)

free_ports() { # the first of so many neighbouring ports that nobody listens on
    local count=$1 first port
    for _ in $(seq 50); do
        first=$((20000 + RANDOM % 12000))
        for port in $(seq "$first" $((first + count - 1))); do
            (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && continue 2
        done
        echo "$first"
        return
    done
    echo "no free ports" >&2
    exit 1
}

up() {
    mkdir -p "$dir"/state "$dir"/log "$dir"/run
    for number in $(seq "$nodes"); do mkdir -p "$dir/spool/n$number"; done
    local port
    port=$(free_ports $((nodes + 1)))
    cat >"$dir/slurm.conf" <<CONF
ClusterName=one_machine
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
# how long a credential lives is how long a requeued job waits
AuthInfo=cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
ReturnToService=2
MinJobAge=3600
KillWait=20
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
DefMemPerCPU=256
NodeName=n[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + nodes))] CPUs=2 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
PartitionName=ci Nodes=n[1-$nodes] Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=n[1-$nodes] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
CONF
    echo "NodeName=n[1-$nodes] Name=gpu File=/dev/null,/dev/zero" >"$dir/gres.conf" # two pretended GPUs a node
    export SLURM_CONF=$dir/slurm.conf
    slurmctld -c
    for number in $(seq "$nodes"); do slurmd -N "n$number"; done
    for _ in $(seq 240); do
        [ "$(sinfo -h -p ci -t idle -o %D 2>/dev/null)" = "$nodes" ] && exit 0
        sleep 0.25
    done
    echo "Slurm did not come up" >&2
    tail -n 20 "$dir"/log/*.log >&2
    exit 1
}

down() {
    local pid pids=()
    for file in "$dir"/run/*.pid; do
        [ -s "$file" ] && pids+=("$(cat "$file")")
    done
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
    done
}

case $command in
up) up ;;
down) down ;;
*)
    echo "usage: $0 up DIR [NODES] | down DIR" >&2
    exit 2
    ;;
esac
