#!/bin/sh
# TaskProlog= of slurm.conf: as the user, before each task. What it prints is added to the task's environment.
defaults=${GOODPUT_DEFAULTS:-/etc/default/goodput-node}
if [ -z "${GOODPUT_DIR:-}" ] && [ -r "$defaults" ]; then
    # shellcheck source=/dev/null
    . "$defaults"
fi
echo "export GOODPUT_DIR=${GOODPUT_DIR:-/run/goodput}"
exit 0
