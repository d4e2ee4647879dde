/* A run: its attempts and groups, made and read. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

int core_version(void)
{
    return CORE_VERSION;
}

/* Make room for `wanted` elements of `size` bytes in the array at `pointer`, new ones zero; false without memory. */
bool grow(void *pointer, int32_t *room, int64_t wanted, size_t size)
{
    if (wanted <= *room)
        return true;
    int64_t more = *room ? *room : 4;
    while (more < wanted)
        more += more / 4 + 1;
    void *array;
    memcpy(&array, pointer, sizeof(array));
    array = realloc(array, (size_t)more * size);
    if (!array)
        return false;
    memset((char *)array + (size_t)*room * size, 0, (size_t)(more - *room) * size);
    memcpy(pointer, &array, sizeof(array));
    *room = (int32_t)more;
    return true;
}

core_run *core_run_new(int64_t least_stall_ns)
{
    if (least_stall_ns < 0 || least_stall_ns > VALUE_MAX)
        return NULL;
    core_run *run = calloc(1, sizeof(*run));
    if (run)
        run->least_stall_ns = least_stall_ns;
    return run;
}

static void free_attempt(attempt *one)
{
    free(one->totals);
    free(one->losses);
    free(one->first);
    free(one->last);
    free(one->waiting);
    free(one->onset.stretches);
}

void core_run_free(core_run *run)
{
    if (!run)
        return;
    for (int32_t i = 0; i < run->count; i++)
        free_attempt(&run->attempts[i]);
    for (int32_t i = 0; i < run->group_count; i++) {
        free(run->groups[i].by_stage);
        free(run->groups[i].members);
    }
    for (int32_t i = 0; i < run->history_count; i++)
        free(run->histories[i].steps);
    for (int32_t i = 0; i < run->layout_count; i++)
        free(run->layouts[i].states);
    free(run->layouts);
    free(run->attempts);
    free(run->groups);
    free(run->histories);
    free(run->compared);
    free(run->units);
    free(run->sorted);
    free(run->rows);
    free(run);
}

int core_group(core_run *run, int32_t stages, int64_t microbatches)
{
    if (!run || stages == 1 || stages < 0 || stages > CORE_STAGES_MAX || microbatches < 0 || microbatches > VALUE_MAX ||
        run->group_count == CORE_GROUPS_MAX)
        return CORE_BAD_ARGUMENT;
    if (!grow(&run->groups, &run->group_room, run->group_count + 1, sizeof(*run->groups)))
        return CORE_NO_MEMORY;
    stage_sums *by_stage = stages ? calloc((size_t)stages, sizeof(*by_stage)) : NULL;
    if (stages && !by_stage)
        return CORE_NO_MEMORY;
    group *own = &run->groups[run->group_count];
    *own = (group){.stages = stages, .microbatches = microbatches, .by_stage = by_stage, .target = -1, .settled = -1};
    return run->group_count++;
}

const uint8_t *states_of(const core_run *run, const attempt *one)
{
    return run->layouts[one->layout].states;
}

/* The layout of these states, the same for all attempts that have them; -1 without memory. */
static int32_t layout_of(core_run *run, int32_t phases, const uint8_t *states)
{
    for (int32_t i = run->layout_count - 1; i >= 0; i--)
        if (run->layouts[i].phases == phases && !memcmp(run->layouts[i].states, states, (size_t)phases))
            return i;
    uint8_t *own = malloc((size_t)phases);
    if (!own || !grow(&run->layouts, &run->layout_room, run->layout_count + 1, sizeof(*run->layouts))) {
        free(own);
        return -1;
    }
    memcpy(own, states, (size_t)phases);
    run->layouts[run->layout_count] = (layout){phases, own};
    return run->layout_count++;
}

static bool set_phases(core_run *run, attempt *one, int32_t phases, const uint8_t *states)
{
    int32_t layout = layout_of(run, phases, states);
    int64_t *sums = layout < 0 ? NULL : calloc(3 * (size_t)phases, sizeof(*sums));
    if (!sums)
        return false;
    for (int i = 0; i < 3 && one->phases; i++)
        memcpy(sums + i * phases, one->totals + i * one->phases, (size_t)one->phases * sizeof(*sums));
    free(one->totals);
    one->totals = sums;
    one->phases = phases;
    one->layout = layout;
    return true;
}

static bool are_states(const uint8_t *states, int32_t phases)
{
    if (phases < 1 || phases > CORE_PHASES_MAX || !states)
        return false;
    for (int32_t i = 0; i < phases; i++)
        if (states[i] >= ROW_STATES || states[i] == STALL)
            return false;
    return true;
}

/* Make room for a comparison of so many members. */
bool reserve_scratch(core_run *run, int32_t members, bool is_pipeline)
{
    return grow(&run->compared, &run->compared_room, members, sizeof(*run->compared)) &&
           grow(&run->sorted, &run->sorted_room, members, sizeof(*run->sorted)) &&
           (!is_pipeline || grow(&run->units, &run->unit_room, members, sizeof(*run->units)));
}

/* Add a member, in the order of ranks; there is room. */
static void join(core_run *run, group *own, int32_t index)
{
    int32_t at = own->count++;
    for (; at > 0 && run->attempts[own->members[at - 1]].rank > run->attempts[index].rank; at--)
        own->members[at] = own->members[at - 1];
    own->members[at] = index;
    own->lacking += is_lacking(run, &run->attempts[index]);
}

static bool are_facts(const core_run *run, const core_attempt_facts *facts)
{
    if (!facts || facts->rank < 0 || facts->rank > VALUE_MAX || facts->start_ns < 0 || facts->start_ns > VALUE_MAX ||
        facts->group < 0 || facts->group >= run->group_count || facts->before < -1 || facts->before >= run->count)
        return false;
    if (facts->before >= 0 && run->attempts[facts->before].rank != facts->rank)
        return false;
    int32_t stages = run->groups[facts->group].stages;
    return are_states(facts->states, facts->phases) && (!stages || (facts->stage >= 0 && facts->stage < stages));
}

int core_attempt(core_run *run, const core_attempt_facts *facts)
{
    if (!run || run->count == CORE_ATTEMPTS_MAX || !are_facts(run, facts))
        return CORE_BAD_ARGUMENT;
    group *own = &run->groups[facts->group];
    bool is_new_rank = facts->before < 0;
    if (!grow(&run->attempts, &run->room, run->count + 1, sizeof(*run->attempts)) ||
        !grow(&own->members, &own->room, own->count + 1, sizeof(*own->members)) ||
        (is_new_rank && !grow(&run->histories, &run->history_room, run->history_count + 1, sizeof(*run->histories))) ||
        !reserve_scratch(run, own->count + 1, own->stages > 0))
        return CORE_NO_MEMORY;
    attempt *one = &run->attempts[run->count];
    *one = (attempt){.rank = facts->rank, .group = facts->group, .unit = facts->unit, .stage = facts->stage,
                     .step = -1, .limit = INT64_MAX, .again = INT64_MAX, .to_ns = VALUE_MAX, .end_ns = facts->start_ns, .onset = {.first = -1}};
    if (!set_phases(run, one, facts->phases, facts->states))
        return CORE_NO_MEMORY;
    one->history = is_new_rank ? run->history_count++ : run->attempts[facts->before].history;
    if (is_new_rank)
        run->histories[one->history].newest = -1;
    join(run, own, run->count);
    return run->count++;
}

int core_attempts(const core_run *run)
{
    return run ? run->count : CORE_BAD_ARGUMENT;
}

int core_phases_of(const core_run *run, int32_t index)
{
    return run && index >= 0 && index < run->count ? run->attempts[index].phases : CORE_BAD_ARGUMENT;
}

int core_phases(core_run *run, int32_t index, int32_t phases, const uint8_t *states)
{
    if (!run || index < 0 || index >= run->count || !are_states(states, phases))
        return CORE_BAD_ARGUMENT;
    attempt *one = &run->attempts[index];
    if (phases < one->phases || (one->rows && memcmp(states, states_of(run, one), (size_t)one->phases)))
        return CORE_BAD_ARGUMENT;
    return set_phases(run, one, phases, states) ? 0 : CORE_NO_MEMORY;
}

int core_bound(core_run *run, int32_t index, int64_t from_ns, int64_t to_ns)
{
    if (!run || index < 0 || index >= run->count || from_ns < 0 || to_ns < from_ns || to_ns > VALUE_MAX)
        return CORE_BAD_ARGUMENT;
    attempt *one = &run->attempts[index];
    if (one->rows && (from_ns != one->from_ns || one->end_ns > to_ns || one->end_ns > one->to_ns))
        return CORE_BAD_ARGUMENT;
    one->from_ns = from_ns;
    one->to_ns = to_ns;
    return 0;
}

int core_again(core_run *run, int32_t index, int64_t last)
{
    if (!run || index < 0 || index >= run->count || last < -1)
        return CORE_BAD_ARGUMENT;
    run->attempts[index].again = last;
    return 0;
}

int core_limit(core_run *run, int32_t index, int64_t limit, const int64_t *points, int32_t count)
{
    if (!run || index < 0 || index >= run->count || limit < -1 || count < 0 || count > CORE_LOSSES_MAX || (count && !points))
        return CORE_BAD_ARGUMENT;
    attempt *one = &run->attempts[index];
    for (int32_t i = 0; i < count; i++)
        if (points[i] < -1 || points[i] > VALUE_MAX)
            return CORE_BAD_ARGUMENT;
    if (one->step > limit || one->lost_steps)
        return CORE_BAD_ARGUMENT;
    loss *losses = count ? calloc((size_t)count, sizeof(*losses)) : NULL;
    if (count && !losses)
        return CORE_NO_MEMORY;
    for (int32_t i = 0; i < count; i++)
        losses[i].point = points[i];
    free(one->losses);
    one->losses = losses;
    one->loss_count = count;
    one->limit = limit;
    return 0;
}

int core_watch(core_run *run, const core_watcher *watcher)
{
    if (!run)
        return CORE_BAD_ARGUMENT;
    run->watcher = watcher ? *watcher : (core_watcher){0};
    return 0;
}

/* Let the group of an attempt go on without it. */
static int leave(core_run *run, int32_t index, bool is_over)
{
    if (!run || index < 0 || index >= run->count)
        return CORE_BAD_ARGUMENT;
    attempt *one = &run->attempts[index];
    group *own = &run->groups[one->group];
    if (is_over)
        fix_first(run, one);
    bool was_lacking = is_lacking(run, one);
    one->is_ended |= is_over;
    one->is_absent |= !is_over && was_lacking;
    own->lacking += is_lacking(run, one) - was_lacking;
    if (own->count > 1)
        group_settle(run, own);
    return 0;
}

int core_end(core_run *run, int32_t index)
{
    return leave(run, index, true);
}

int core_absent(core_run *run, int32_t index)
{
    return leave(run, index, false);
}

static void read_attempt(const core_run *run, const attempt *one, int64_t *values)
{
    memset(values, 0, READ_COUNT * sizeof(*values));
    int64_t *inside = values + READ_INSIDE;
    memcpy(inside, one->inside, sizeof(one->inside));
    memcpy(values + READ_OUTSIDE, one->gaps, sizeof(one->gaps));
    if (one->first) {
        int64_t first[ROW_STATES];
        charge_first(one->first, first);
        for (int i = 0; i < ROW_STATES; i++)
            inside[i] += first[i];
        values[READ_PROVISIONAL] = 1;
    }
    inside[COMMUNICATION] -= one->straggler_ns + one->bubble_ns;
    values[READ_STRAGGLER] = one->straggler_ns;
    values[READ_BUBBLE] = one->bubble_ns;
    values[READ_CAUSED] = one->caused_ns;
    values[READ_CAUSED_IN_GROUP] = one->caused_in_group_ns;
    values[READ_MATCHED] = one->matched_ns;
    values[READ_COMPARED_STEPS] = one->compared_steps;
    values[READ_LAST_STEPS] = one->last_steps;
    values[READ_COMPARED_OWN] = one->compared_own_ns;
    values[READ_COMPARED_COUNT] = one->compared_count;
    values[READ_LATE_ROWS] = one->late_rows;
    values[READ_PENDING_ROWS] = one->queued + one->is_taken;
    values[READ_LOST] = one->lost_ns;
    values[READ_LOST_STEPS] = one->lost_steps;
    values[READ_STEPS] = one->steps;
    values[READ_WORK] = one->work;
    values[READ_ROWS] = one->rows;
    values[READ_NUMBER] = one->row_number;
    values[READ_TOP_STEP] = one->step;
    values[READ_END] = one->end_ns;
    values[READ_SAMPLES] = one->samples;
    values[READ_KEPT_SAMPLES] = one->kept_samples;
    values[READ_DEVICE] = one->device_ns;
    values[READ_COMPUTE] = one->compute_ns;
    values[READ_SAVED] = one->saved_ns;
    values[READ_CLAMPED] = one->clamped;
    values[READ_THRESHOLD] = judge(run, one).threshold_ns;
    values[READ_LENGTHS] = run->histories[one->history].count;
    values[READ_SLOW] = one->onset.slow;
    values[READ_FIRST_COMPARED] = one->onset.first;
}

int core_read(const core_run *run, int32_t index, int64_t *values)
{
    if (!run || !values || index < 0 || index >= run->count)
        return CORE_BAD_ARGUMENT;
    read_attempt(run, &run->attempts[index], values);
    return 0;
}

int core_read_all(const core_run *run, int64_t *values, int64_t attempts)
{
    if (!run || attempts != run->count || (attempts && !values))
        return CORE_BAD_ARGUMENT;
    for (int32_t i = 0; i < run->count; i++)
        read_attempt(run, &run->attempts[i], values + (int64_t)i * READ_COUNT);
    return 0;
}

int core_read_rates(const core_run *run, double *values, int64_t attempts)
{
    if (!run || attempts != run->count || (attempts && !values))
        return CORE_BAD_ARGUMENT;
    for (int32_t i = 0; i < run->count; i++)
        values[i] = peak_rate(&run->attempts[i].peak);
    return 0;
}

int64_t core_settled(const core_run *run, int32_t group_index)
{
    if (!run || group_index < 0 || group_index >= run->group_count)
        return CORE_BAD_ARGUMENT;
    return run->groups[group_index].settled;
}

int core_read_stage(const core_run *run, int32_t group_index, int32_t stage, int64_t *caused_ns, int64_t *steps)
{
    if (!run || group_index < 0 || group_index >= run->group_count || stage < 0 ||
        stage >= run->groups[group_index].stages || !caused_ns || !steps)
        return CORE_BAD_ARGUMENT;
    *caused_ns = run->groups[group_index].by_stage[stage].caused_ns;
    *steps = run->groups[group_index].by_stage[stage].steps;
    return 0;
}

int core_read_stretches(const core_run *run, int32_t index, core_stretch *stretches)
{
    if (!run || !stretches || index < 0 || index >= run->count)
        return CORE_BAD_ARGUMENT;
    const onset *own = &run->attempts[index].onset;
    if (own->count)
        memcpy(stretches, own->stretches, (size_t)own->count * sizeof(*stretches));
    return (int)own->count;
}

int core_read_loss(const core_run *run, int32_t index, int32_t restart, int64_t *steps, int64_t *ns)
{
    if (!run || index < 0 || index >= run->count || restart < 0 || restart >= run->attempts[index].loss_count || !steps || !ns)
        return CORE_BAD_ARGUMENT;
    *steps = run->attempts[index].losses[restart].steps;
    *ns = run->attempts[index].losses[restart].ns;
    return 0;
}

int core_read_planned(const core_run *run, int32_t index, int64_t *values)
{
    if (!run || !values || index < 0 || index >= run->count)
        return CORE_BAD_ARGUMENT;
    memcpy(values, run->histories[run->attempts[index].history].planned_ns, CORE_PLANNED_STATES * sizeof(*values));
    return 0;
}

int core_read_phases(const core_run *run, int32_t index, int64_t *values, int32_t phases, int64_t *steps)
{
    if (!run || !values || !steps || index < 0 || index >= run->count || phases != run->attempts[index].phases)
        return CORE_BAD_ARGUMENT;
    const attempt *one = &run->attempts[index];
    memcpy(values, one->totals + 2 * phases, (size_t)phases * sizeof(*values));
    *steps = one->usual_steps;
    return 0;
}

int64_t core_memory_bytes(const core_run *run)
{
    if (!run)
        return CORE_BAD_ARGUMENT;
    int64_t bytes = sizeof(*run) + (int64_t)run->room * sizeof(attempt) + (int64_t)run->group_room * sizeof(group);
    bytes += (int64_t)run->history_room * sizeof(history) + (int64_t)run->layout_room * sizeof(layout);
    for (int32_t i = 0; i < run->layout_count; i++)
        bytes += run->layouts[i].phases;
    bytes += run->compared_room * (int64_t)sizeof(compared) + run->unit_room * (int64_t)sizeof(unit);
    bytes += ((int64_t)run->sorted_room + run->row_room) * (int64_t)sizeof(int64_t);
    for (int32_t i = 0; i < run->count; i++) {
        const attempt *one = &run->attempts[i];
        bytes += one->phases * 3 * (int64_t)sizeof(int64_t) + one->room * (int64_t)sizeof(span);
        bytes += (one->first ? sizeof(first_step) : 0) + (one->last ? sizeof(judgement) : 0) + one->loss_count * (int64_t)sizeof(loss);
        bytes += one->onset.stretches ? CORE_STRETCHES_MAX * sizeof(core_stretch) : 0;
    }
    for (int32_t i = 0; i < run->group_count; i++)
        bytes += run->groups[i].room * (int64_t)sizeof(int32_t) + run->groups[i].stages * (int64_t)sizeof(stage_sums);
    for (int32_t i = 0; i < run->history_count; i++)
        bytes += run->histories[i].room * (int64_t)sizeof(long_step);
    return bytes;
}
