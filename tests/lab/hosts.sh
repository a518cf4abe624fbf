#!/usr/bin/env bash
# Become a cluster: the first process of private pid, mount, net, uts and ipc namespaces, which end with it.
#   hosts.sh FOLDER NODES
# The login host is this process itself; each node is a namespace of its own, with its own name, address, /dev/shm and
# sshd, on a bridge. FOLDER holds what cluster.py wrote: slurm.conf, sshd_config, ssh_config, hosts, munge.key.
# FOLDER/pids/NODE is a process of that node; FOLDER/ready says that Slurm has all nodes idle.
set -euo pipefail
folder=$1 nodes=$2
export SLURM_CONF=$folder/slurm.conf

mount -t proc proc /proc
hostname login
ip link set lo up
ip link add br0 type bridge
ip addr add 10.77.0.254/24 dev br0
ip link set br0 up
mount --bind "$folder/hosts" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd
mount --bind "$folder/ssh_config" /etc/ssh/ssh_config
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.sock" --pid-file="$folder/pids/munged" \
    --seed-file="$folder/munge.seed" --log-file="$folder/log/munged"
slurmctld -f "$SLURM_CONF"

for ((node = 0; node < nodes; node++)); do
    # What a node does not share with the others: its /dev/shm, and the folder of that name.
    # shellcheck disable=SC2016
    unshare --net --uts --ipc --mount --propagation private bash -c '
        hostname "node$2"
        mount -t tmpfs tmpfs /dev/shm
        mkdir -p "$1/unshared" "$1/own/node$2"
        mount --bind "$1/own/node$2" "$1/unshared"
        ip link set lo up
        echo $$ >"$1/pids/node$2"
        exec sleep infinity
    ' node "$folder" "$node" &
done
for ((node = 0; node < nodes; node++)); do
    until [ -s "$folder/pids/node$node" ]; do sleep 0.01; done
    pid=$(<"$folder/pids/node$node")
    ip link add "veth$node" type veth peer name eth0 netns "$pid"
    ip link set "veth$node" master br0 up
    inside=(nsenter --target "$pid" --mount --uts --ipc --net)
    "${inside[@]}" ip addr add "10.77.0.$((node + 1))/24" dev eth0
    "${inside[@]}" ip link set eth0 up
    "${inside[@]}" ip route add default via 10.77.0.254
    "${inside[@]}" "$(command -v sshd)" -f "$folder/sshd_config"
    "${inside[@]}" slurmd -f "$SLURM_CONF" -N "node$node"
done
until [ "$(sinfo --noheader --states=idle --format=%D)" = "$nodes" ]; do sleep 0.05; done
touch "$folder/ready"
wait
