/* A run as bytes. One description of the fields counts, writes and reads them, so the three cannot differ. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MAGIC UINT64_C(0x65726f63646f6f67)

typedef struct {
    uint8_t *bytes; /* NULL to count only */
    int64_t at, size;
    bool is_reading, is_bad;
} stream;

static void bytes_of(stream *to, void *values, int64_t size)
{
    if (to->is_bad || size < 0 || (to->bytes && size > to->size - to->at)) {
        to->is_bad = true;
        return;
    }
    if (size && to->bytes && to->is_reading)
        memcpy(values, to->bytes + to->at, (size_t)size);
    else if (size && to->bytes)
        memcpy(to->bytes + to->at, values, (size_t)size);
    to->at += size;
}

#define FIELD(name) bytes_of(to, &(name), sizeof(name))

static void check(stream *to, bool is_good)
{
    to->is_bad |= !is_good;
}

/* An array of `count` elements, of which `room` are to be allocated when read. */
static void array_of(stream *to, void *pointer, int64_t count, int64_t room, size_t size)
{
    void *array;
    memcpy(&array, pointer, sizeof(array));
    if (to->is_reading) {
        array = NULL;
        if (to->is_bad || count < 0 || count > room || count > (to->size - to->at) / (int64_t)size) {
            to->is_bad = true;
            return;
        }
        if (room && !(array = calloc((size_t)room, size))) {
            to->is_bad = true;
            return;
        }
        memcpy(pointer, &array, sizeof(array));
    }
    if (count)
        bytes_of(to, array, count * (int64_t)size);
}

/* A struct that there may be; returns whether there is. */
static bool optional(stream *to, void *pointer, size_t size)
{
    void *own;
    memcpy(&own, pointer, sizeof(own));
    uint8_t has = own != NULL;
    FIELD(has);
    check(to, has <= 1);
    if (has)
        array_of(to, pointer, 1, 1, size);
    return has && !to->is_bad;
}

static bool are_values(const int64_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (values[i] < 0 || values[i] > VALUE_MAX)
            return false;
    return true;
}

/* From -1 for none on. */
static bool are_steps(const int64_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (values[i] < -1 || values[i] > VALUE_MAX)
            return false;
    return true;
}

static void save_layout(stream *to, layout *own)
{
    FIELD(own->phases);
    FIELD(own->used);
    check(to, own->phases >= 1 && own->phases <= CORE_PHASES_MAX && own->used >= 0 && own->used <= phase_column(own->phases, 0));
    array_of(to, &own->states, own->phases, own->phases, 1);
    if (to->is_reading && !to->is_bad && !layout_open(own))
        to->is_bad = true;
    if (to->is_bad)
        return;
    bytes_of(to, own->columns, own->used * (int64_t)sizeof(*own->columns));
    for (int32_t i = 0; to->is_reading && i < own->phases; i++)
        check(to, own->states[i] < ROW_STATES && own->states[i] != STALL);
    for (int32_t i = 0; to->is_reading && !to->is_bad && i < own->used; i++) {
        check(to, own->columns[i] < phase_column(own->phases, 0) && own->places[own->columns[i]] == NOWHERE);
        if (!to->is_bad)
            own->places[own->columns[i]] = (uint16_t)i;
    }
}

static void save_history(stream *to, history *own)
{
    uint8_t has_past = own->past != NULL;
    FIELD(own->count);
    FIELD(own->kept);
    FIELD(has_past);
    check(to, own->kept <= CORE_WINDOW && own->kept <= own->count && has_past <= 1 &&
                  (has_past || !own->kept));
    if (!has_past || to->is_bad)
        return;
    if (to->is_reading) {
        own->room = own->kept;
        own->past = calloc(1, sizeof(*own->past) + own->kept * sizeof(own->past->steps[0]));
        if (!own->past) {
            to->is_bad = true;
            return;
        }
    }
    bytes_of(to, own->past, (int64_t)(sizeof(*own->past) + own->kept * sizeof(own->past->steps[0])));
    check(to, are_values(own->past->planned_ns, CORE_PLANNED_STATES));
    for (uint32_t i = 0; i < own->kept; i++)
        check(to, own->past->steps[i].number <= own->count && are_values(&own->past->steps[i].ns, 1));
}

static void save_group(stream *to, const core_run *run, group *own)
{
    FIELD(own->stages);
    FIELD(own->microbatches);
    FIELD(own->count);
    FIELD(own->target);
    FIELD(own->settled);
    check(to, own->stages >= 0 && own->stages != 1 && own->stages <= CORE_STAGES_MAX && own->count >= 0 && own->count <= run->count &&
                  are_values(&own->microbatches, 1) && are_steps(&own->target, 2));
    array_of(to, &own->by_stage, own->stages, own->stages, sizeof(*own->by_stage));
    for (int32_t i = 0; to->is_reading && !to->is_bad && i < own->stages; i++)
        check(to, are_values(&own->by_stage[i].caused_ns, 2));
    if (to->is_reading)
        own->room = own->count;
    array_of(to, &own->members, own->count, own->room, sizeof(*own->members));
}

static void save_limits(stream *to, attempt *one)
{
    int64_t count = one->limits ? 1 + one->limits->count : 0;
    FIELD(count);
    check(to, count >= 0 && count <= 1 + CORE_LOSSES_MAX);
    if (!count || to->is_bad)
        return;
    size_t size = sizeof(limits) + (size_t)(count - 1) * sizeof(loss);
    array_of(to, &one->limits, (int64_t)size, (int64_t)size, 1);
    if (!to->is_reading || to->is_bad)
        return;
    limits *own = one->limits;
    check(to, own->count == count - 1 && own->limit >= -1 && own->again >= -1 && are_values(&own->lost_ns, 2));
    for (int64_t i = 0; i < count - 1; i++)
        check(to, are_steps(&own->losses[i].point, 1) && are_values(&own->losses[i].steps, 2));
}

static void save_samples(stream *to, attempt *one)
{
    if (!optional(to, &one->samples, sizeof(*one->samples)))
        return;
    const peak *own = &one->samples->peak;
    const double *values = &own->best_samples;
    for (int i = 0; i < 6; i++)
        check(to, values[i] >= 0 && values[i] <= 1e200);
    check(to, own->steps >= 0 && own->steps <= VALUE_MAX && (own->is_known == 0 || own->is_known == 1));
    check(to, are_values(&one->samples->samples, 5));
}

static void save_first(stream *to, attempt *one)
{
    if (!optional(to, &one->first, sizeof(*one->first)))
        return;
    const first_step *own = one->first;
    check(to, own->others >= 0 && own->others < CORE_FIRST_OTHERS && one->sums.rows > 0 && are_values(own->inside, ROW_STATES) &&
                  are_values(&own->threshold_ns, 3) && are_values(own->lengths, CORE_FIRST_OTHERS) &&
                  are_values(own->works, CORE_FIRST_OTHERS));
}

static bool is_span(const span *one)
{
    return one->first <= one->last && one->first >= -VALUE_MAX && one->last >= 0 && one->last <= VALUE_MAX &&
           are_values(&one->communication, 4) && one->within <= one->communication &&
           (one->is_counted == 0 || one->is_counted == 1);
}

/* What waits, without the place that it has in the ring, so runs in which the same waits are the same bytes. */
static void save_waiting(stream *to, attempt *one)
{
    check(to, one->queued >= 0 && one->queued <= CORE_PENDING_MAX && (one->queued || !(one->is_summed | one->is_beginning)));
    if (to->is_reading && !to->is_bad && one->queued) {
        one->room = one->queued;
        if (!(one->waiting = calloc((size_t)one->room, sizeof(*one->waiting))))
            to->is_bad = true;
    }
    for (int32_t i = 0; !to->is_bad && i < one->queued; i++) {
        FIELD(*waiting_at(one, i));
        check(to, is_span(waiting_at(one, i)));
    }
}

static void save_stretches(stream *to, attempt *one)
{
    const onset *own = &one->onset;
    check(to, one->stretch_count <= CORE_STRETCHES_MAX && (!one->is_slow || one->stretch_count) && own->sum == own->sum &&
                  own->sum_beside == own->sum_beside && are_values(&own->began, 2) && are_steps(&own->first, 1));
    array_of(to, &one->stretches, one->stretch_count, one->stretch_count ? CORE_STRETCHES_MAX : 0, sizeof(*one->stretches));
}

static void save_values(stream *to, const core_run *run, attempt *one)
{
    check(to, one->layout >= 0 && one->layout < run->layout_count && one->width <= run->layouts[one->layout].used);
    array_of(to, &one->values, one->width, one->width, sizeof(int64_t));
    check(to, to->is_bad || !to->is_reading || are_values(one->values, one->width));
}

static void save_attempt(stream *to, const core_run *run, attempt *one)
{
    _Static_assert(offsetof(attempt, head) == offsetof(attempt, group) + 6 * sizeof(int32_t) + 8 + sizeof(int32_t), "no gaps");
    const attempt_sums *sums = &one->sums;
    bytes_of(to, one, offsetof(attempt, head));
    check(to, are_values(&one->rank, 4) && one->from_ns <= one->to_ns && are_values(&sums->straggler_ns, 16) && are_steps(&sums->top_step, 1) &&
                  are_values(&sums->end_ns, 1) && one->usual_steps <= sums->steps && one->group >= 0 && one->group < run->group_count &&
                  one->before >= -1 && one->before < one - run->attempts && one->next >= -1 && one->next < run->count &&
                  (one->is_ended | one->is_absent | one->is_slow | one->is_summed | one->is_beginning | 1) == 1);
    save_values(to, run, one);
    save_limits(to, one);
    save_samples(to, one);
    save_first(to, one);
    save_history(to, &one->past);
    save_waiting(to, one);
    save_stretches(to, one);
}

static void save_run(stream *to, core_run *run)
{
    uint64_t magic = MAGIC, version = CORE_VERSION;
    FIELD(magic);
    FIELD(version);
    check(to, magic == MAGIC && version == CORE_VERSION);
    FIELD(run->least_stall_ns);
    int32_t counts[3] = {run->count, run->group_count, run->layout_count};
    FIELD(counts);
    check(to, are_values(&run->least_stall_ns, 1) && counts[0] >= 0 && counts[0] <= CORE_ATTEMPTS_MAX && counts[1] >= 0 &&
                  counts[1] <= CORE_GROUPS_MAX && counts[2] >= 0);
    /* Each takes bytes here, so no more is allocated than a multiple of what there is. */
    for (int i = 0; to->is_reading && i < 3; i++)
        check(to, counts[i] <= to->size - to->at);
    if (to->is_reading && !to->is_bad) {
        if (!grow(&run->attempts, &run->room, counts[0], sizeof(*run->attempts)) ||
            !grow(&run->groups, &run->group_room, counts[1], sizeof(*run->groups)) ||
            !grow(&run->layouts, &run->layout_room, counts[2], sizeof(*run->layouts)))
            to->is_bad = true;
        else {
            run->count = counts[0];
            run->group_count = counts[1];
            run->layout_count = counts[2];
        }
    }
    for (int32_t i = 0; i < run->layout_count && !to->is_bad; i++)
        save_layout(to, &run->layouts[i]);
    for (int32_t i = 0; i < run->group_count && !to->is_bad; i++)
        save_group(to, run, &run->groups[i]);
    for (int32_t i = 0; i < run->count && !to->is_bad; i++)
        save_attempt(to, run, &run->attempts[i]);
}

int64_t core_saved_bytes(const core_run *run)
{
    stream counting = {0};
    if (!run)
        return CORE_BAD_ARGUMENT;
    save_run(&counting, (core_run *)run);
    return counting.is_bad ? CORE_BAD_ARGUMENT : counting.at;
}

int core_save(const core_run *run, uint8_t *bytes, int64_t size)
{
    stream writing = {bytes, 0, size, false, false};
    if (!run || !bytes || size < 0)
        return CORE_BAD_ARGUMENT;
    save_run(&writing, (core_run *)run);
    return writing.is_bad || writing.at != size ? CORE_BAD_ARGUMENT : 0;
}

/* Whether each attempt is a member of its group, once, in the order of ranks. */
static bool are_members(const core_run *run, const group *own, uint8_t *seen)
{
    for (int32_t at = 0; at < own->count; at++) {
        int32_t index = own->members[at];
        if (index < 0 || index >= run->count || seen[index]++ || &run->groups[run->attempts[index].group] != own)
            return false;
        const attempt *one = &run->attempts[index];
        if (own->stages && (one->stage < 0 || one->stage >= own->stages))
            return false;
        if (at && run->attempts[own->members[at - 1]].rank > one->rank)
            return false;
    }
    return true;
}

/* Check how attempts and groups fit, and find again what is not saved. */
static bool finish_restored(core_run *run)
{
    int32_t members = 0;
    uint8_t *seen = calloc((size_t)run->count + 1, 1);
    bool is_good = seen != NULL;
    for (int32_t i = 0; is_good && i < run->group_count; i++) {
        group *own = &run->groups[i];
        is_good = are_members(run, own, seen);
        for (int32_t at = 0; is_good && at < own->count; at++)
            own->lacking += is_lacking(run, &run->attempts[own->members[at]]);
        is_good = is_good && reserve_scratch(run, own->count, own->stages > 0);
        members += is_good ? own->count : 0;
    }
    free(seen);
    return is_good && members == run->count;
}

core_run *core_restore(const uint8_t *bytes, int64_t size)
{
    if (!bytes || size < 0)
        return NULL;
    core_run *run = calloc(1, sizeof(*run));
    stream reading = {(uint8_t *)bytes, 0, size, true, false};
    if (!run)
        return NULL;
    save_run(&reading, run);
    if (reading.is_bad || reading.at != size || !finish_restored(run)) {
        core_run_free(run);
        return NULL;
    }
    return run;
}
