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

static bool are_values(const int64_t *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (values[i] < 0 || values[i] > VALUE_MAX)
            return false;
    return true;
}

static void save_history(stream *to, const core_run *run, history *own)
{
    FIELD(own->count);
    FIELD(own->kept);
    FIELD(own->planned_ns);
    FIELD(own->newest);
    check(to, own->newest >= -1 && own->newest < run->count);
    if (to->is_reading)
        own->room = own->kept;
    check(to, own->kept <= CORE_WINDOW && own->kept <= own->count && are_values(own->planned_ns, CORE_PLANNED_STATES));
    array_of(to, &own->steps, own->kept, own->room, sizeof(*own->steps));
    for (uint32_t i = 0; to->is_reading && !to->is_bad && i < own->kept; i++)
        check(to, own->steps[i].number <= own->count && are_values(&own->steps[i].ns, 1));
}

static void save_group(stream *to, const core_run *run, group *own)
{
    FIELD(own->stages);
    FIELD(own->microbatches);
    FIELD(own->count);
    FIELD(own->target);
    FIELD(own->settled);
    check(to, own->stages >= 0 && own->stages != 1 && own->stages <= CORE_STAGES_MAX && own->count >= 0 &&
                  own->count <= run->count && are_values(&own->microbatches, 1) && own->target >= -1 &&
                  own->target <= VALUE_MAX && own->settled >= -1 && own->settled <= VALUE_MAX);
    array_of(to, &own->by_stage, own->stages, own->stages, sizeof(*own->by_stage));
    for (int32_t i = 0; to->is_reading && !to->is_bad && i < own->stages; i++)
        check(to, are_values(&own->by_stage[i].caused_ns, 2));
    if (to->is_reading)
        own->room = own->count;
    array_of(to, &own->members, own->count, own->room, sizeof(*own->members));
}

static void save_first(stream *to, attempt *one)
{
    uint8_t has_first = one->first != NULL;
    FIELD(has_first);
    if (to->is_reading && has_first && !to->is_bad && !(one->first = calloc(1, sizeof(*one->first))))
        to->is_bad = true;
    if (!one->first)
        return;
    FIELD(*one->first);
    check(to, one->first->others >= 0 && one->first->others < CORE_FIRST_OTHERS && one->rows > 0 &&
                  are_values(one->first->inside, ROW_STATES) && are_values(&one->first->threshold_ns, 3) &&
                  are_values(one->first->lengths, CORE_FIRST_OTHERS) && are_values(one->first->works, CORE_FIRST_OTHERS));
}

static bool is_span(const span *one)
{
    return one->first <= one->last && one->first >= -VALUE_MAX && one->last >= 0 && one->last <= VALUE_MAX &&
           are_values(&one->communication, 4) && one->within <= one->communication && (one->beginning == 0 || one->beginning == 1) &&
           (one->counted == 0 || one->counted == 1);
}

static void save_last(stream *to, attempt *one)
{
    uint8_t has_last = one->last != NULL;
    FIELD(has_last);
    if (to->is_reading && has_last && !to->is_bad && !(one->last = calloc(1, sizeof(*one->last))))
        to->is_bad = true;
    if (one->last) {
        FIELD(*one->last);
        check(to, are_values(&one->last->threshold_ns, 1 + CORE_PLANNED_STATES));
    }
}

/* What waits, without the place that it has in the ring, so runs in which the same waits are the same bytes. */
static void save_waiting(stream *to, attempt *one)
{
    FIELD(one->queued);
    check(to, one->queued >= 0 && one->queued <= CORE_PENDING_MAX);
    if (to->is_reading && !to->is_bad && one->queued) {
        for (one->room = 4; one->room < one->queued;)
            one->room *= 2;
        if (!(one->waiting = calloc((size_t)one->room, sizeof(*one->waiting))))
            to->is_bad = true;
    }
    for (int32_t i = 0; !to->is_bad && i < one->queued; i++) {
        span *own = &one->waiting[(one->head + i) & (one->room - 1)];
        FIELD(*own);
        check(to, is_span(own));
    }
    if (one->is_taken)
        FIELD(one->taken);
    check(to, !one->is_taken || is_span(&one->taken));
}

static void save_onset(stream *to, onset *own)
{
    FIELD(own->sum);
    FIELD(own->sum_beside);
    FIELD(own->began);
    FIELD(own->began_beside);
    FIELD(own->first);
    FIELD(own->slow);
    FIELD(own->count);
    check(to, own->count >= 0 && own->count <= CORE_STRETCHES_MAX && (own->slow == 0 || (own->slow == 1 && own->count)) &&
                  own->sum == own->sum && own->sum_beside == own->sum_beside);
    check(to, own->began >= 0 && own->began <= VALUE_MAX && own->began_beside >= 0 && own->began_beside <= VALUE_MAX);
    array_of(to, &own->stretches, own->count, own->count ? CORE_STRETCHES_MAX : 0, sizeof(*own->stretches));
}

static void save_peak(stream *to, peak *own)
{
    FIELD(*own);
    const double *values = &own->best_samples;
    for (int i = 0; i < 6; i++)
        check(to, values[i] >= 0 && values[i] <= 1e200);
    check(to, own->steps >= 0 && own->steps <= VALUE_MAX && (own->is_known == 0 || own->is_known == 1));
}

static void save_losses(stream *to, attempt *one)
{
    FIELD(one->from_ns);
    FIELD(one->to_ns);
    FIELD(one->again);
    FIELD(one->limit);
    FIELD(one->loss_count);
    check(to, are_values(&one->from_ns, 2) && one->from_ns <= one->to_ns && one->again >= -1);
    check(to, one->limit >= -1 && one->loss_count >= 0 && one->loss_count <= CORE_LOSSES_MAX);
    array_of(to, &one->losses, one->loss_count, one->loss_count, sizeof(*one->losses));
    for (int32_t i = 0; to->is_reading && !to->is_bad && i < one->loss_count; i++)
        check(to, one->losses[i].point >= -1 && one->losses[i].point <= VALUE_MAX && are_values(&one->losses[i].steps, 2));
}

static void save_sums(stream *to, attempt *one)
{
    FIELD(one->row_number);
    FIELD(one->step);
    FIELD(one->end_ns);
    FIELD(one->samples);
    FIELD(one->samples_total);
    FIELD(one->device_total_ns);
    FIELD(one->inside);
    FIELD(one->gaps);
    int64_t *sums[] = {&one->rows, &one->steps, &one->usual_steps, &one->device_ns, &one->compute_ns, &one->saved_ns, &one->clamped,
                       &one->straggler_ns, &one->bubble_ns, &one->caused_ns, &one->caused_in_group_ns, &one->matched_ns,
                       &one->compared_steps, &one->last_steps, &one->late_rows, &one->lost_ns, &one->lost_steps,
                       &one->kept_samples, &one->work, &one->compared_own_ns, &one->compared_count, &one->row_number, &one->end_ns,
                       &one->samples, &one->samples_total, &one->device_total_ns};
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++) {
        if (i < 21)
            FIELD(*sums[i]);
        check(to, are_values(sums[i], 1));
    }
    check(to, are_values(one->inside, ROW_STATES) && are_values(one->gaps, ROW_STATES) && one->step >= -1 &&
                  one->step <= VALUE_MAX && one->usual_steps <= one->steps);
}

static void save_layout(stream *to, layout *own)
{
    FIELD(own->phases);
    check(to, own->phases >= 1 && own->phases <= CORE_PHASES_MAX);
    array_of(to, &own->states, own->phases, own->phases, 1);
    for (int32_t i = 0; to->is_reading && !to->is_bad && i < own->phases; i++)
        check(to, own->states[i] < ROW_STATES && own->states[i] != STALL);
}

static void save_phases(stream *to, const core_run *run, attempt *one)
{
    FIELD(one->layout);
    check(to, one->layout >= 0 && one->layout < run->layout_count);
    if (to->is_bad)
        return;
    one->phases = run->layouts[one->layout].phases;
    array_of(to, &one->totals, 3 * one->phases, 3 * one->phases, sizeof(int64_t));
    check(to, to->is_bad || !to->is_reading || are_values(one->totals, 3 * one->phases));
}

static void save_attempt(stream *to, const core_run *run, attempt *one)
{
    FIELD(one->rank);
    FIELD(one->group);
    FIELD(one->unit);
    FIELD(one->stage);
    FIELD(one->history);
    FIELD(one->is_ended);
    FIELD(one->is_absent);
    FIELD(one->is_taken);
    check(to, are_values(&one->rank, 1) && one->group >= 0 && one->group < run->group_count && one->history >= 0 &&
                  one->history < run->history_count && (one->is_ended | one->is_absent | one->is_taken | 1) == 1);
    save_phases(to, run, one);
    save_losses(to, one);
    save_sums(to, one);
    save_peak(to, &one->peak);
    save_first(to, one);
    save_last(to, one);
    save_waiting(to, one);
    save_onset(to, &one->onset);
}

static void save_run(stream *to, core_run *run)
{
    uint64_t magic = MAGIC, version = CORE_VERSION;
    FIELD(magic);
    FIELD(version);
    check(to, magic == MAGIC && version == CORE_VERSION);
    FIELD(run->least_stall_ns);
    int32_t counts[4] = {run->count, run->group_count, run->history_count, run->layout_count};
    FIELD(counts);
    check(to, are_values(&run->least_stall_ns, 1) && counts[0] >= 0 && counts[0] <= CORE_ATTEMPTS_MAX && counts[1] >= 0 &&
                  counts[1] <= CORE_GROUPS_MAX && counts[2] >= 0 && counts[2] <= counts[0] && counts[3] >= 0);
    /* Each takes bytes here, so no more is allocated than a multiple of what there is. */
    for (int i = 0; to->is_reading && i < 4; i++)
        check(to, counts[i] <= to->size - to->at);
    if (to->is_reading && !to->is_bad) {
        if (!grow(&run->attempts, &run->room, counts[0], sizeof(*run->attempts)) ||
            !grow(&run->groups, &run->group_room, counts[1], sizeof(*run->groups)) ||
            !grow(&run->histories, &run->history_room, counts[2], sizeof(*run->histories)) ||
            !grow(&run->layouts, &run->layout_room, counts[3], sizeof(*run->layouts)))
            to->is_bad = true;
        else {
            run->count = counts[0];
            run->group_count = counts[1];
            run->history_count = counts[2];
            run->layout_count = counts[3];
        }
    }
    for (int32_t i = 0; i < run->layout_count && !to->is_bad; i++)
        save_layout(to, &run->layouts[i]);
    for (int32_t i = 0; i < run->history_count && !to->is_bad; i++)
        save_history(to, run, &run->histories[i]);
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
    for (int32_t i = 0; is_good && i < run->history_count; i++) {
        int32_t newest = run->histories[i].newest;
        is_good = newest < 0 || run->attempts[newest].history == i;
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
