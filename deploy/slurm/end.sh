#!/bin/sh
# EpilogSlurmctld= of slurm.conf: as SlurmUser on the controller, once when a job has ended. Tells the aggregator that a
# job was cancelled, ran out of its time, completed or failed, and when, so that the time of its run ends with its
# allocation; for one that failed the alert GoodputRunFailed fires. Not for one that is requeued, whose run goes on. It ends
# at once, with 0, and with 127 where its program is missing: slurmctld drops what it prints and logs its exit status,
# which changes nothing for the job.
#
# In: /etc/default/goodput-end, or the file in GOODPUT_DEFAULTS: GOODPUT_AGGREGATOR, GOODPUT_TOKEN_FILE (one that SlurmUser
# may read, of scope ingest), GOODPUT_CA_FILE; PATH and SLURM_CONF where Slurm is elsewhere, since slurmctld passes neither.
# Only for runs whose name is the job's number, as without GOODPUT_RUN.
set -a
# shellcheck source=/dev/null
[ ! -r "${GOODPUT_DEFAULTS:-/etc/default/goodput-end}" ] || . "${GOODPUT_DEFAULTS:-/etc/default/goodput-end}"
set +a
job=${SLURM_JOB_ID:-}
[ -n "$job" ] || exit 0

program=${GOODPUT_PROGRAM:-/opt/goodput/bin/goodput}
if [ "${1:-}" != wait ] && [ ! -x "$program" ]; then
    text="$program is not there or cannot be run by $(id -un): the run of job $job is not ended; set GOODPUT_PROGRAM in ${GOODPUT_DEFAULTS:-/etc/default/goodput-end}"
    logger -t goodput-slurm -- "$text" 2>/dev/null
    echo "goodput: $text" >&2 # for who runs it by hand
    exit 127
fi

# The job has no final state as long as this script runs: it is COMPLETING. And slurmctld kills the script's process
# group once it has ended. So the wait is in a session of its own, which exists when it has closed its standard output.
if [ "${1:-}" != wait ]; then
    : "$(setsid --fork "$0" wait </dev/null 2>/dev/null)"
    exit 0
fi
exec >/dev/null 2>&1

# Until the last of its nodes is done with the job, which takes a while where one is hung.
left=${GOODPUT_END_WAIT:-3600} pause=1
while :; do
    # Not scontrol, whose output has the job's name, which may be anything.
    found=$(squeue --noheader --states=all --jobs="$job" --format='%A %T %e' | sed -n "s/^$job //p")
    state=${found%% *} ended=${found#* }
    case $state in
        COMPLETING | '') ;; # none while slurmctld does not answer
        *) break ;;
    esac
    if [ "$left" -le 0 ]; then
        logger -t goodput-slurm -- "job $job: no final state in time (${state:-unknown}); its run was not ended"
        exit 0
    fi
    sleep "$pause"
    left=$((left - pause)) pause=$((pause < 15 ? pause + 1 : 15))
done
case $state in
    CANCELLED | TIMEOUT | DEADLINE | PREEMPTED) reason=cancelled ;;
    COMPLETED) reason=finished ;;
    FAILED | NODE_FAIL | OUT_OF_MEMORY | BOOT_FAIL) reason=failed ;;
    *) exit 0 ;;
esac
# Agents notice that ranks are dead some seconds later.
answer=$("$program" end "$job" --reason "$reason" --at "$ended" --wait 120 2>&1)
logger -t goodput-slurm -- "job $job, $state: $answer"
exit 0
