#!/bin/sh
# Prolog= of slurm.conf (PrologFlags=Alloc): as root on each node of a job before it starts. Starts the node agent if
# none runs. Always ends with 0.
here=$(dirname -- "$(readlink -f -- "$0")")
# shellcheck source=deploy/slurm/agent.sh
. "$here/agent.sh"
goodput_ensure_agent
exit 0
