#!/bin/sh
# Epilog= of slurm.conf: as root on each node of a job after it ended. An agent that died meanwhile is started again,
# since the pages of ended ranks still say what happened; the agent removes them once it has reported that. Always ends with 0.
here=$(dirname -- "$(readlink -f -- "$0")")
# shellcheck source=deploy/slurm/agent.sh
. "$here/agent.sh"
goodput_ensure_agent
exit 0
