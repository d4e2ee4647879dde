/* A run: its attempts and groups, and what is known of them beside their rows. */
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

core_run *core_run_new(int64_t least_threshold_ns)
{
    if (least_threshold_ns < 0 || least_threshold_ns > VALUE_MAX)
        return NULL;
    core_run *run = calloc(1, sizeof(*run));
    if (run)
        run->least_threshold_ns = least_threshold_ns;
    return run;
}

static void free_attempt(attempt *one)
{
    free(one->waiting);
    free(one->values);
    free(one->limits);
    free(one->samples);
    free(one->first);
    free(one->past.past);
    free(one->stretches);
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
    for (int32_t i = 0; i < run->layout_count; i++) {
        free(run->layouts[i].states);
        free(run->layouts[i].places);
    }
    free(run->layouts);
    free(run->attempts);
    free(run->groups);
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
    if (!grow(&run->attempts, &run->room, run->count + 1, sizeof(*run->attempts)) ||
        !grow(&own->members, &own->room, own->count + 1, sizeof(*own->members)) ||
        !reserve_scratch(run, own->count + 1, own->stages > 0))
        return CORE_NO_MEMORY;
    int32_t layout = layout_of(run, facts->phases, facts->states);
    if (layout < 0)
        return CORE_NO_MEMORY;
    attempt *one = &run->attempts[run->count];
    *one = (attempt){.rank = facts->rank, .start_ns = facts->start_ns, .to_ns = VALUE_MAX, .group = facts->group, .unit = facts->unit, .stage = facts->stage,
                     .layout = layout, .onset = {.first = -1}, .sums = {.top_step = -1, .end_ns = facts->start_ns}};
    one->before = facts->before;
    one->next = -1;
    if (facts->before >= 0)
        run->attempts[facts->before].next = run->count;
    join(run, own, run->count);
    return run->count++;
}

int core_attempts(const core_run *run)
{
    return run ? run->count : CORE_BAD_ARGUMENT;
}

int core_phases_of(const core_run *run, int32_t index)
{
    const attempt *one = attempt_at(run, index);
    return one ? run->layouts[one->layout].phases : CORE_BAD_ARGUMENT;
}

int core_phases(core_run *run, int32_t index, int32_t phases, const uint8_t *states)
{
    attempt *one = attempt_at(run, index);
    if (!one || !are_states(states, phases))
        return CORE_BAD_ARGUMENT;
    const layout *now = &run->layouts[one->layout];
    if (phases < now->phases || (one->sums.rows && memcmp(states, now->states, (size_t)now->phases)))
        return CORE_BAD_ARGUMENT;
    int32_t next = layout_of(run, phases, states);
    if (next < 0 || !values_move(&run->layouts[one->layout], &run->layouts[next], one))
        return CORE_NO_MEMORY;
    one->layout = next;
    return 0;
}

int core_bound(core_run *run, int32_t index, int64_t from_ns, int64_t to_ns)
{
    attempt *one = attempt_at(run, index);
    if (!one || from_ns < 0 || to_ns < from_ns || to_ns > VALUE_MAX)
        return CORE_BAD_ARGUMENT;
    int64_t end_ns = one->sums.end_ns;
    if (one->sums.rows && (from_ns != one->from_ns || end_ns > to_ns || end_ns > one->to_ns))
        return CORE_BAD_ARGUMENT;
    one->from_ns = from_ns;
    one->to_ns = to_ns;
    return 0;
}

/* Make room for so many losses, those before forgotten; false without memory. */
static bool set_limits(attempt *one, int64_t limit, int64_t again, const int64_t *points, int32_t count)
{
    limits *own = calloc(1, sizeof(*own) + (size_t)count * sizeof(own->losses[0]));
    if (!own)
        return false;
    own->limit = limit;
    own->again = again;
    own->count = count;
    for (int32_t i = 0; i < count; i++)
        own->losses[i].point = points[i];
    free(one->limits);
    one->limits = own;
    return true;
}

int core_again(core_run *run, int32_t index, int64_t last)
{
    attempt *one = attempt_at(run, index);
    if (!one || last < -1)
        return CORE_BAD_ARGUMENT;
    if (!one->limits)
        return last == INT64_MAX || set_limits(one, INT64_MAX, last, NULL, 0) ? 0 : CORE_NO_MEMORY;
    one->limits->again = last;
    return 0;
}

int core_limit(core_run *run, int32_t index, int64_t limit, const int64_t *points, int32_t count)
{
    attempt *one = attempt_at(run, index);
    if (!one || limit < -1 || count < 0 || count > CORE_LOSSES_MAX || (count && !points))
        return CORE_BAD_ARGUMENT;
    for (int32_t i = 0; i < count; i++)
        if (points[i] < -1 || points[i] > VALUE_MAX)
            return CORE_BAD_ARGUMENT;
    if (one->sums.top_step > limit || (one->limits && one->limits->lost_steps))
        return CORE_BAD_ARGUMENT;
    if (limit == INT64_MAX && !count && !one->limits)
        return 0;
    return set_limits(one, limit, one->limits ? one->limits->again : INT64_MAX, points, count) ? 0 : CORE_NO_MEMORY;
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
    attempt *one = attempt_at(run, index);
    if (!one)
        return CORE_BAD_ARGUMENT;
    group *own = &run->groups[one->group];
    if (is_over)
        fix_first(run, one);
    bool was_lacking = is_lacking(run, one);
    if (is_over)
        one->is_ended = true;
    else if (was_lacking)
        one->is_absent = true;
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
