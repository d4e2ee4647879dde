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

# The folder of rank pages, open to all users as /tmp is, and the agent's own, so that it may remove what jobs left. By
# default only root can have made it, since nobody else writes to /run. Elsewhere (/dev/shm) a user may have put a folder
# or a link of theirs in its place, and swap it at any time. So the folder is entered once, which holds it as an open
# descriptor does; where it is and whose it is are checked from inside, and only "." is changed.
goodput_make_directory() (
    name=${goodput_dir##*/}
    case $goodput_dir in
        /*/*) ;;
        *) goodput_say "GOODPUT_DIR=$goodput_dir is not an absolute path in a folder" && return 1 ;;
    esac
    mkdir -p -- "${goodput_dir%/*}" && cd -P -- "${goodput_dir%/*}" && parent=$(pwd -P) || return 1
    mkdir -- "./$name" 2>/dev/null || true
    cd -P -- "./$name" || return 1
    if [ "$(pwd -P)" != "${parent%/}/$name" ]; then
        goodput_say "$goodput_dir is a symbolic link; left alone"
        return 1
    fi
    owner=$(stat --format %u .) && user=$(id -u -- "$goodput_user") || return 1
    if [ "$owner" != "$(id -u)" ] && [ "$owner" != "$user" ]; then
        goodput_say "$goodput_dir belongs to user $owner, who may remove other users' pages: left alone; remove it," \
            "or set GOODPUT_DIR=/run/goodput"
        return 1
    fi
    # Before the chown: of another's folder only root may change the mode.
    chmod 1777 . || return 1
    [ "$(id -u)" != 0 ] || chown -- "$user" .
)

# A mount of its own with bounds, as deploy/systemd/run-goodput.mount makes: any user may write there, and /run is what the
# system needs. Not over a folder that has pages, which it would hide.
goodput_mount() {
    [ "$goodput_dir" = /run/goodput ] && [ "$(id -u)" = 0 ] || return 0
    ! mountpoint -q -- "$goodput_dir" || return 0
    [ -z "$(find "$goodput_dir" -name '*.page' -print -quit 2>/dev/null)" ] || return 0
    if systemctl cat run-goodput.mount >/dev/null 2>&1; then
        systemctl start run-goodput.mount
    else
        mkdir -p -- "$goodput_dir" &&
            mount -t tmpfs -o mode=1777,size=1g,nr_inodes=16k,nosuid,nodev,noexec goodput "$goodput_dir"
    fi || goodput_say "$goodput_dir could not be mounted: it has no bound of its own"
}

# What is ours alone: in a folder that others cannot enter nobody else can hold a lock.
goodput_make_state() {
    mkdir -p -- "$goodput_state" && chmod 700 -- "$goodput_state"
}

goodput_has_unit() {
    command -v systemctl >/dev/null 2>&1 && systemctl cat "$goodput_unit" >/dev/null 2>&1
}

# An agent that was started here has this lock open and held, and the kernel drops it with the agent, however it dies.
# Nothing in the folder of pages is opened: others write there.
goodput_runs() {
    if goodput_has_unit; then
        systemctl is-active --quiet "$goodput_unit"
        return
    fi
    goodput_status=0
    flock --nonblock --conflict-exit-code 75 "$goodput_state/agent.lock" true || goodput_status=$?
    [ "$goodput_status" = 75 ]
}

# Whether the folder of pages has an agent, by the kernel's list of locks.
goodput_serves() {
    goodput_inode=$(stat --format %i -- "$goodput_dir/.agent.lock" 2>/dev/null) &&
        grep -q "FLOCK.*:$goodput_inode " /proc/locks
}

goodput_launch() {
    if goodput_has_unit; then
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
    # In a session of its own and with nothing of ours open but its lock: slurmd waits for a prolog's output to end.
    {
        flock --nonblock 8 || return 1
        # shellcheck disable=SC2086  # Options are words.
        setsid "$@" ${GOODPUT_NODE_OPTIONS:-} </dev/null >>"$goodput_state/agent.log" 2>&1 9>&- &
    } 8>>"$goodput_state/agent.lock"
    echo "$!" >"$goodput_state/agent.pid"
}

# Two jobs may start on a node at once; the second waits until the first has its agent running.
goodput_ensure_agent() {
    goodput_make_state || return 0
    {
        flock --timeout 15 9 || return 0
        goodput_mount
        goodput_make_directory || return 0
        if ! goodput_runs && goodput_launch; then
            tries=50
            while [ "$tries" -gt 0 ] && ! goodput_serves; do
                # One that has ended does not come again; a unit takes a moment to start.
                goodput_has_unit || goodput_runs || tries=1
                sleep 0.1
                tries=$((tries - 1))
            done
            [ "$tries" -gt 0 ] || goodput_say "no agent on $goodput_dir: see $goodput_state/agent.log or the unit's" \
                "journal, and whether $goodput_defaults says GOODPUT_DIR=$goodput_dir"
        fi
    } 9>"$goodput_state/lock"
    return 0
}
