# shellcheck shell=sh
# Read by prolog.sh and epilog.sh: one node agent per node, started if none runs. It never fails: a prolog that does
# drains the node, and telemetry is not worth a node.
#
# In: /etc/default/goodput-node (the same file as the systemd unit's), or the file in GOODPUT_DEFAULTS.

goodput_defaults=${GOODPUT_DEFAULTS:-/etc/default/goodput-node}
# shellcheck source=/dev/null
[ ! -r "$goodput_defaults" ] || . "$goodput_defaults"

# Not /dev/shm: job_container/tmpfs gives each job its own, and systemd-logind empties it when the user logs out.
goodput_dir=${GOODPUT_DIR:-/run/goodput}
goodput_user=${GOODPUT_USER:-goodput}
goodput_program=${GOODPUT_PROGRAM:-/opt/goodput/bin/goodput}
goodput_state=${GOODPUT_STATE:-/run/goodput-agent}
goodput_unit=${GOODPUT_UNIT:-goodput-node.service}

goodput_say() {
    logger -t goodput-slurm -- "$*" 2>/dev/null || true
    # Into slurmd's log, where SlurmdDebug shows it.
    echo "goodput: $*" >&2
}

# The folder of rank pages, open to all users as /tmp is, and the agent's own, so that it may remove what jobs left.
goodput_make_directory() {
    if [ -L "$goodput_dir" ]; then
        goodput_say "$goodput_dir is a symbolic link; left alone"
        return 1
    fi
    mkdir -p -- "$goodput_dir" && chmod 1777 -- "$goodput_dir" || return 1
    [ "$(id -u)" != 0 ] || chown -- "$goodput_user:" "$goodput_dir"
}

# An agent holds a lock on this file in its folder, and the kernel drops the lock with it, however it dies.
goodput_runs() {
    [ -e "$goodput_dir/.agent.lock" ] || return 1
    goodput_status=0
    # A status of its own, so that a lock file that cannot be read is not taken for an agent that runs.
    flock --nonblock --shared --conflict-exit-code 75 "$goodput_dir/.agent.lock" true || goodput_status=$?
    [ "$goodput_status" = 75 ]
}

goodput_launch() {
    if command -v systemctl >/dev/null 2>&1 && systemctl cat "$goodput_unit" >/dev/null 2>&1; then
        systemctl start --no-block "$goodput_unit"
        return
    fi
    if [ ! -x "$goodput_program" ]; then
        goodput_say "$goodput_program is not there: no agent on this node"
        return 1
    fi
    set -- "$goodput_program" node --directory "$goodput_dir"
    if [ "$(id -u)" = 0 ] && [ "$goodput_user" != root ]; then
        set -- setpriv --reuid "$goodput_user" --regid "$(id -g "$goodput_user")" --clear-groups -- "$@"
    fi
    # In a session of its own and with nothing of ours open: slurmd waits for a prolog's output to end.
    # shellcheck disable=SC2086  # Options are words.
    setsid "$@" ${GOODPUT_NODE_OPTIONS:-} </dev/null >>"$goodput_state/agent.log" 2>&1 9>&- &
    echo "$!" >"$goodput_state/agent.pid"
}

# Two jobs may start on a node at once; the second waits until the first has its agent running.
goodput_ensure_agent() {
    mkdir -p -- "$goodput_state" && goodput_make_directory || return 0
    {
        flock --timeout 15 9 || return 0
        if ! goodput_runs && goodput_launch; then
            tries=50
            while [ "$tries" -gt 0 ] && ! goodput_runs; do
                sleep 0.1
                tries=$((tries - 1))
            done
            goodput_runs || goodput_say "no agent on $goodput_dir after 5 s: see $goodput_state/agent.log or the unit's" \
                "journal, and whether $goodput_defaults says GOODPUT_DIR=$goodput_dir"
        fi
    } 9>"$goodput_state/lock"
    return 0
}
