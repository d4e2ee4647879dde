/* What is known of attempts and groups, read. */
#include <string.h>

#include "internal.h"

static void read_states(const core_run *run, const attempt *one, int64_t *values)
{
    const layout *own = &run->layouts[one->layout];
    for (int i = 0; i < ROW_STATES; i++) {
        values[READ_INSIDE + i] = value_at(own, one, INSIDE + i);
        values[READ_OUTSIDE + i] = value_at(own, one, OUTSIDE + i);
    }
    if (one->first) {
        int64_t first[ROW_STATES];
        charge_first(one->first, first);
        for (int i = 0; i < ROW_STATES; i++)
            values[READ_INSIDE + i] += first[i];
    }
    values[READ_INSIDE + COMMUNICATION] -= one->sums.straggler_ns + one->sums.bubble_ns;
}

static void read_attempt(const core_run *run, const attempt *one, int64_t *values)
{
    _Static_assert(sizeof(one->sums) == (READ_PENDING_ROWS - READ_STRAGGLER) * sizeof(int64_t), "sums are columns");
    memset(values, 0, READ_COUNT * sizeof(*values));
    read_states(run, one, values);
    memcpy(values + READ_STRAGGLER, &one->sums, sizeof(one->sums));
    values[READ_PENDING_ROWS] = one->queued;
    if (one->limits) {
        values[READ_LOST] = one->limits->lost_ns;
        values[READ_LOST_STEPS] = one->limits->lost_steps;
    }
    if (one->samples) {
        values[READ_SAMPLES] = one->samples->samples;
        values[READ_KEPT_SAMPLES] = one->samples->kept_samples;
        values[READ_DEVICE] = one->samples->device_ns;
    }
    values[READ_THRESHOLD] = history_threshold_ns(known_of(run, one), run->least_threshold_ns);
    values[READ_LENGTHS] = known_of(run, one)->count;
    values[READ_PROVISIONAL] = one->first != NULL;
    values[READ_SLOW] = one->is_slow;
    values[READ_FIRST_COMPARED] = one->onset.first;
    memcpy(values + READ_PLANNED, planned_of(known_of(run, one)), CORE_PLANNED_STATES * sizeof(*values));
}

int core_read(const core_run *run, int32_t index, int32_t count, int64_t *values)
{
    if (!run || index < 0 || count < 0 || count > run->count || index > run->count - count || (count && !values))
        return CORE_BAD_ARGUMENT;
    for (int32_t i = 0; i < count; i++)
        read_attempt(run, &run->attempts[index + i], values + (int64_t)i * READ_COUNT);
    return 0;
}

int core_read_rates(const core_run *run, double *values, int64_t attempts)
{
    if (!run || attempts != run->count || (attempts && !values))
        return CORE_BAD_ARGUMENT;
    for (int32_t i = 0; i < run->count; i++)
        values[i] = run->attempts[i].samples ? peak_rate(&run->attempts[i].samples->peak) : 0;
    return 0;
}

int64_t core_settled(const core_run *run, int32_t index)
{
    return run && index >= 0 && index < run->group_count ? run->groups[index].settled : CORE_BAD_ARGUMENT;
}

int core_read_stage(const core_run *run, int32_t index, int32_t stage, int64_t *caused_ns, int64_t *steps)
{
    if (!run || index < 0 || index >= run->group_count || stage < 0 || stage >= run->groups[index].stages || !caused_ns || !steps)
        return CORE_BAD_ARGUMENT;
    *caused_ns = run->groups[index].by_stage[stage].caused_ns;
    *steps = run->groups[index].by_stage[stage].steps;
    return 0;
}

int core_read_stretches(const core_run *run, int32_t index, core_stretch *stretches)
{
    const attempt *one = attempt_at(run, index);
    if (!one || !stretches)
        return CORE_BAD_ARGUMENT;
    for (int i = 0; i < one->stretch_count; i++)
        stretches[i] = one->stretches[i];
    return one->stretch_count;
}

int core_read_loss(const core_run *run, int32_t index, int32_t restart, int64_t *steps, int64_t *ns)
{
    const attempt *one = attempt_at(run, index);
    if (!one || !one->limits || restart < 0 || restart >= one->limits->count || !steps || !ns)
        return CORE_BAD_ARGUMENT;
    *steps = one->limits->losses[restart].steps;
    *ns = one->limits->losses[restart].ns;
    return 0;
}

int core_read_phases(const core_run *run, int32_t index, int64_t *values, int32_t phases, int64_t *steps)
{
    const attempt *one = attempt_at(run, index);
    if (!one || !values || !steps || phases != run->layouts[one->layout].phases)
        return CORE_BAD_ARGUMENT;
    for (int32_t i = 0; i < phases; i++)
        values[i] = value_at(&run->layouts[one->layout], one, phase_column(i, USUAL));
    *steps = one->usual_steps;
    return 0;
}

static int64_t attempt_bytes(const attempt *one)
{
    int64_t bytes = one->room * (int64_t)sizeof(span) + one->width * (int64_t)sizeof(int64_t);
    bytes += one->limits ? sizeof(limits) + one->limits->count * sizeof(loss) : 0;
    bytes += (one->samples ? sizeof(sample_sums) : 0) + (one->first ? sizeof(first_step) : 0);
    bytes += one->past.past ? (int64_t)(sizeof(long_times) + one->past.room * sizeof(long_step)) : 0;
    return bytes + (one->stretches ? CORE_STRETCHES_MAX * sizeof(core_stretch) : 0);
}

int64_t core_memory_bytes(const core_run *run)
{
    if (!run)
        return CORE_BAD_ARGUMENT;
    int64_t bytes = sizeof(*run) + (int64_t)run->room * sizeof(attempt) + (int64_t)run->group_room * sizeof(group);
    bytes += (int64_t)run->layout_room * sizeof(layout);
    bytes += run->compared_room * (int64_t)sizeof(compared) + run->unit_room * (int64_t)sizeof(unit);
    bytes += ((int64_t)run->sorted_room + run->row_room) * (int64_t)sizeof(int64_t);
    for (int32_t i = 0; i < run->layout_count; i++)
        bytes += run->layouts[i].phases + 2 * phase_column(run->layouts[i].phases, 0) * (int64_t)sizeof(uint16_t);
    for (int32_t i = 0; i < run->count; i++)
        bytes += attempt_bytes(&run->attempts[i]);
    for (int32_t i = 0; i < run->group_count; i++)
        bytes += run->groups[i].room * (int64_t)sizeof(int32_t) + run->groups[i].stages * (int64_t)sizeof(stage_sums);
    return bytes;
}
