/* The time after an attempt's newest row. */
#include <string.h>

#include "internal.h"

static void fill(const layout *by, const attempt *one, const int64_t *totals, int32_t phases, int32_t open_state, int64_t length,
                 int64_t *tail, int64_t *running)
{
    wide own[ROW_STATES] = {0}, nothing[ROW_STATES] = {0}, known = 0;
    for (int32_t i = 0; i < phases; i++) {
        int64_t grown = totals[i] - value_at(by, one, phase_column(i, TOTAL));
        if (grown > 0) {
            own[by->states[i]] += grown;
            known += grown;
        }
    }
    *running = known < length ? (int64_t)(length - known) : 0;
    own[open_state] += *running;
    if (known > length)
        fit(own, nothing, length);
    for (int i = 0; i < ROW_STATES; i++)
        tail[i] = (int64_t)(own[i] + nothing[i]);
}

/* Move planned time beyond its limit to `stall`. A process that makes rollouts and no steps may make any number of them, so of
 * these only the running one is limited. */
static void limit(const history *by, int64_t threshold_ns, const attempt *one, int32_t open_state, int64_t running, int64_t *tail)
{
    int64_t others = 0;
    if (!one->sums.rows) {
        others = open_state == ROLLOUT ? tail[ROLLOUT] - running : tail[ROLLOUT];
        tail[ROLLOUT] -= others;
    }
    limit_planned(planned_of(by), threshold_ns, tail);
    tail[ROLLOUT] += others;
}

int core_tail(const core_run *run, int32_t index, const int64_t *totals, int32_t phases, int32_t open_state, int64_t end_ns,
              int32_t how, int64_t *values)
{
    const attempt *one = attempt_at(run, index);
    if (!one || !values || phases < 0 || (phases && !totals) || open_state < 0 || open_state >= ROW_STATES || end_ns < 0 ||
        end_ns > VALUE_MAX || how < TAIL_RUNNING || how > TAIL_ENDED)
        return CORE_BAD_ARGUMENT;
    const layout *own = &run->layouts[one->layout];
    phases = phases < own->phases ? phases : own->phases;
    for (int32_t i = 0; i < phases; i++)
        if (totals[i] < 0 || totals[i] > VALUE_MAX)
            return CORE_BAD_ARGUMENT;
    int64_t length = end_ns > one->sums.end_ns ? end_ns - one->sums.end_ns : 0, running = 0;
    memset(values, 0, TAIL_COUNT * sizeof(*values));
    fill(own, one, totals, phases, open_state, length, values, &running);
    const history *known = known_of(run, one);
    int64_t threshold_ns = history_threshold_ns(known, run->least_threshold_ns);
    if (length > PLANNED_LEAST_NS)
        limit(known, threshold_ns, one, open_state, running, values);
    values[TAIL_COMPUTE] = values[PRODUCTIVE];
    values[TAIL_SAVED] = values[CHECKPOINT];
    if (!one->sums.rows)
        settle_beginning(values, true);
    else if (unplanned_ns(values) > threshold_ns)
        move_to_stall(values);
    else if (how == TAIL_DIED) {
        values[TAIL_LOST] = length;
        memset(values, 0, ROW_STATES * sizeof(*values));
    } else if (how == TAIL_ENDED) {
        values[UNATTRIBUTED] += values[PRODUCTIVE];
        values[PRODUCTIVE] = 0;
    }
    return 0;
}
