#!/bin/bash
# run_slurm.sh PYTHON [PYTEST ARGUMENTS]: a Slurm of this one machine, with daemons, ports, a key and files of its own,
# and the tests in test_slurm.py on it. Whatever it starts, it stops. Where Slurm is missing, root gets it from Debian's
# packages; others are told and nothing is run.
set -euo pipefail
python=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin

if ! { command -v munged && command -v slurmctld && command -v slurmd && command -v sbatch; } > /dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "skipped: expected Slurm and munge, found none: install them (on Debian apt-get install slurm-wlm munge)"
    exit 0
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q > /dev/null
  apt-get install -y -q --no-install-recommends slurm-wlm munge > /dev/null
fi

folder=$(mktemp -d /tmp/logcal-slurm.XXXXXX)
chmod 755 "$folder"
mkdir "$folder"/{key,munge,state,spool}
chmod 700 "$folder/key"
pids=()

stop() {
  code=$?
  set +e
  if [ "$code" != 0 ]; then tail -n 20 "$folder"/*.log >&2; fi
  # Jobs first: they are children of none of the daemons here.
  if [ ${#pids[@]} = 3 ]; then
    scancel --user="$(id -un)" && for _ in $(seq 60); do [ -z "$(squeue --noheader)" ] && break; sleep 0.5; done
  fi
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" && wait "${pids[i]}"; done 2> /dev/null
  rm -rf "$folder"
  exit "$code"
}
trap stop EXIT
trap 'exit 130' INT TERM

until_true() {  # what it is, then a command, waited for 60 s
  what=$1
  shift
  for _ in $(seq 240); do "$@" > /dev/null 2>&1 && return; sleep 0.25; done
  echo "expected $what, found none after 60 s" >&2
  return 1
}

read -r control node < <("$python" -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))')
export SLURM_CONF=$folder/slurm.conf
name=$(hostname -s)
cat > "$SLURM_CONF" << END
ClusterName=logcal
SlurmctldHost=$name(127.0.0.1)
SlurmctldPort=$control
SlurmdPort=$node
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# Jobs wait for each other on no machine, however small.
SlurmdParameters=config_overrides
KillWait=5
NodeName=$name NodeAddr=127.0.0.1 CPUs=4 RealMemory=8192 State=UNKNOWN
PartitionName=normal Nodes=$name Default=YES MaxTime=1-0 State=UP
PartitionName=closed Nodes=$name MaxTime=1-0 State=DOWN
END

(umask 077 && head -c 1024 /dev/urandom > "$folder/key/munge.key")
munged --foreground --num-threads=2 --key-file="$folder/key/munge.key" --socket="$folder/munge/socket" \
  --pid-file="$folder/munge/pid" --seed-file="$folder/key/seed" > "$folder/munged.log" 2>&1 &
pids+=($!)
until_true "munge's socket" test -S "$folder/munge/socket"
slurmctld -D -c > /dev/null 2>&1 &
pids+=($!)
slurmd -D > /dev/null 2>&1 &
pids+=($!)
until_true "an idle node" sh -c 'sinfo --noheader --partition=normal --states=idle | grep -q idle'

echo "$(slurmd -V), $("$python" -c 'import dask_jobqueue; print("dask-jobqueue", dask_jobqueue.__version__)'), $(date -u +%F)"
LOGCAL_TEST_SLURM=1 "$python" -m pytest -n 0 -m slow -s "$here/test_slurm.py" "$@"
