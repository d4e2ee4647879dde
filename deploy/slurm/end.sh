#!/bin/sh
# EpilogSlurmctld= of slurm.conf: as SlurmUser on the controller, once when a job has ended. Tells the aggregator of a job
# that was cancelled, ran out of its time or completed, so that its run is not taken for one that died. Not of one that
# failed, which someone is to hear of, nor of one that is requeued, whose run goes on. Always ends with 0, at once.
#
# In: /etc/default/goodput-end, or the file in GOODPUT_DEFAULTS: GOODPUT_AGGREGATOR, GOODPUT_TOKEN_FILE (one that SlurmUser
# may read, of scope ingest), GOODPUT_CA_FILE. Only for runs whose name is the job's number, as without GOODPUT_RUN.
set -a
# shellcheck source=/dev/null
[ ! -r "${GOODPUT_DEFAULTS:-/etc/default/goodput-end}" ] || . "${GOODPUT_DEFAULTS:-/etc/default/goodput-end}"
set +a
state=$(scontrol show job --oneliner "${SLURM_JOB_ID:-}" 2>/dev/null | tr ' ' '\n' | sed -n 's/^JobState=//p')
case $state in
    CANCELLED | TIMEOUT | DEADLINE) reason=cancelled ;;
    COMPLETED) reason=finished ;;
    *) exit 0 ;;
esac
# It waits until the nodes' agents have seen the ranks die, and slurmctld should not.
{
    said=$("${GOODPUT_PROGRAM:-/opt/goodput/bin/goodput}" end "$SLURM_JOB_ID" --reason "$reason" --wait 120 2>&1)
    logger -t goodput-slurm -- "job $SLURM_JOB_ID, $state: $said"
} </dev/null >/dev/null 2>&1 &
exit 0
