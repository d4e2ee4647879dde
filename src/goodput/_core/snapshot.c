/* A run as bytes. One description of the fields counts, writes and reads them, so the three cannot differ.
 *
 * A checksum finds bytes that were changed; beyond that only what is an index or a count is checked, so that no bytes at all make
 * a run that uses memory that is not its own. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MAGIC UINT64_C(0x65726f63646f6f67)

typedef struct {
    uint8_t *bytes; /* NULL to count only */
    int64_t at, size;
    bool is_reading, is_bad;
} stream;

static void check(stream *to, bool is_good)
{
    to->is_bad |= !is_good;
}

static void bytes_of(stream *to, void *values, int64_t size)
{
    check(to, !to->bytes || size <= to->size - to->at);
    if (to->is_bad)
        return;
    if (size && to->bytes && to->is_reading)
        memcpy(values, to->bytes + to->at, (size_t)size);
    else if (size && to->bytes)
        memcpy(to->bytes + to->at, values, (size_t)size);
    to->at += size;
}

#define FIELD(name) bytes_of(to, &(name), sizeof(name))
/* The fields of a struct up to one, between which there must be no gaps. */
#define FIELDS_BEFORE(own, field) bytes_of(to, own, (char *)&(own)->field - (char *)(own))

/* `size` bytes at a pointer, of which `room` are to be allocated when read. */
static void block_of(stream *to, void *pointer, int64_t size, int64_t room)
{
    void *block = NULL;
    if (to->is_reading) {
        check(to, size <= to->size - to->at);
        if (to->is_bad || !room)
            return;
        block = calloc(1, (size_t)room);
        check(to, block != NULL);
        memcpy(pointer, &block, sizeof(block));
    } else
        memcpy(&block, pointer, sizeof(block));
    bytes_of(to, block, size);
}

/* The same if there is one; returns whether there is. */
static bool optional(stream *to, void *pointer, size_t size)
{
    void *own;
    memcpy(&own, pointer, sizeof(own));
    uint8_t has = own != NULL;
    FIELD(has);
    if (has)
        block_of(to, pointer, (int64_t)size, (int64_t)size);
    return has && !to->is_bad;
}

static void save_layout(stream *to, layout *own)
{
    FIELDS_BEFORE(own, states);
    check(to, own->phases >= 1 && own->phases <= CORE_PHASES_MAX && own->used >= 0 && own->used <= phase_column(own->phases, 0));
    block_of(to, &own->states, own->phases, own->phases);
    check(to, to->is_bad || !to->is_reading || layout_open(own));
    if (to->is_bad)
        return;
    bytes_of(to, own->columns, own->used * (int64_t)sizeof(*own->columns));
    for (int32_t i = 0; i < own->phases; i++)
        check(to, own->states[i] < ROW_STATES);
    for (int32_t i = 0; to->is_reading && !to->is_bad && i < own->used; i++)
        if (own->columns[i] < phase_column(own->phases, 0))
            own->places[own->columns[i]] = (uint16_t)i;
        else
            to->is_bad = true;
}

static void save_history(stream *to, history *own)
{
    int64_t size = own->past ? (int64_t)(sizeof(long_times) + own->kept * sizeof(long_step)) : 0;
    FIELD(own->count);
    FIELD(own->kept);
    FIELD(size);
    check(to, own->kept <= CORE_WINDOW &&
                  (size ? size == (int64_t)(sizeof(long_times) + own->kept * sizeof(long_step)) : !own->kept));
    block_of(to, &own->past, size, size);
    own->room = to->is_reading ? own->kept : own->room;
}

static void save_group(stream *to, const core_run *run, group *own)
{
    FIELDS_BEFORE(own, room);
    check(to, own->stages >= 0 && own->stages <= CORE_STAGES_MAX && own->count >= 0 && own->count <= run->count);
    int64_t stages = own->stages * (int64_t)sizeof(*own->by_stage), members = own->count * (int64_t)sizeof(*own->members);
    block_of(to, &own->by_stage, stages, stages);
    block_of(to, &own->members, members, members);
    own->room = to->is_reading ? own->count : own->room;
}

static void save_limits(stream *to, attempt *one)
{
    int64_t losses = one->limits ? one->limits->count : -1, size = 0;
    FIELD(losses);
    check(to, losses >= -1 && losses <= CORE_LOSSES_MAX);
    if (losses >= 0 && !to->is_bad)
        size = (int64_t)(sizeof(limits) + (size_t)losses * sizeof(loss));
    block_of(to, &one->limits, size, size);
    check(to, to->is_bad || losses < 0 || one->limits->count == losses);
}

/* What waits, without the place that it has in the ring, so runs in which the same waits are the same bytes. */
static void save_waiting(stream *to, attempt *one)
{
    check(to, one->queued >= 0 && one->queued <= CORE_PENDING_MAX && (one->queued || !(one->is_summed | one->is_beginning)));
    if (to->is_reading && !to->is_bad && one->queued) {
        one->room = one->queued;
        one->waiting = calloc((size_t)one->room, sizeof(*one->waiting));
        check(to, one->waiting != NULL);
    }
    for (int32_t i = 0; !to->is_bad && i < one->queued; i++)
        FIELD(*waiting_at(one, i));
}

static void save_attempt(stream *to, const core_run *run, attempt *one)
{
    _Static_assert(offsetof(attempt, head) == offsetof(attempt, group) + 7 * sizeof(int32_t) + 8, "no gaps");
    FIELDS_BEFORE(one, head);
    check(to, one->group >= 0 && one->group < run->group_count && one->before >= -1 && one->before < one - run->attempts &&
                  one->next >= -1 && one->next < run->count && one->layout >= 0 && one->layout < run->layout_count && one->stretch_count <= CORE_STRETCHES_MAX &&
                  (!one->is_slow || one->stretch_count));
    if (to->is_bad)
        return;
    check(to, one->width <= run->layouts[one->layout].used);
    block_of(to, &one->values, one->width * (int64_t)sizeof(*one->values), one->width * (int64_t)sizeof(*one->values));
    save_limits(to, one);
    optional(to, &one->samples, sizeof(*one->samples));
    if (optional(to, &one->first, sizeof(*one->first)))
        check(to, one->first->others >= 0 && one->first->others < CORE_FIRST_OTHERS);
    save_history(to, &one->past);
    save_waiting(to, one);
    int64_t size = one->stretch_count * (int64_t)sizeof(*one->stretches);
    block_of(to, &one->stretches, size, size ? CORE_STRETCHES_MAX * (int64_t)sizeof(*one->stretches) : 0);
}

static void save_counts(stream *to, core_run *run)
{
    int32_t counts[] = {run->count, run->group_count, run->layout_count};
    FIELD(counts);
    /* Each takes bytes here, so no more is allocated than a multiple of what there is. */
    for (int i = 0; i < 3; i++)
        check(to, counts[i] >= 0 && (!to->is_reading || counts[i] <= to->size - to->at));
    if (to->is_bad || !to->is_reading)
        return;
    check(to, grow(&run->attempts, &run->room, counts[0], sizeof(*run->attempts)) &&
                  grow(&run->groups, &run->group_room, counts[1], sizeof(*run->groups)) &&
                  grow(&run->layouts, &run->layout_room, counts[2], sizeof(*run->layouts)));
    if (to->is_bad)
        return;
    run->count = counts[0];
    run->group_count = counts[1];
    run->layout_count = counts[2];
}

/* Changes with every byte and its place. */
static uint64_t checksum_of(const uint8_t *bytes, int64_t size)
{
    uint64_t sum = (uint64_t)size, word;
    for (int64_t at = 0; at < size; at += 8) {
        word = 0;
        memcpy(&word, bytes + at, size - at < 8 ? (size_t)(size - at) : 8);
        sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 32;
    }
    return sum;
}

static void save_run(stream *to, core_run *run)
{
    uint64_t magic = MAGIC, version = CORE_VERSION;
    FIELD(magic);
    FIELD(version);
    check(to, magic == MAGIC && version == CORE_VERSION);
    FIELD(run->least_threshold_ns);
    save_counts(to, run);
    for (int32_t i = 0; i < run->layout_count && !to->is_bad; i++)
        save_layout(to, &run->layouts[i]);
    for (int32_t i = 0; i < run->group_count && !to->is_bad; i++)
        save_group(to, run, &run->groups[i]);
    for (int32_t i = 0; i < run->count && !to->is_bad; i++)
        save_attempt(to, run, &run->attempts[i]);
    uint64_t own = to->bytes && !to->is_bad ? checksum_of(to->bytes, to->at) : 0, checksum = own;
    FIELD(checksum);
    check(to, checksum == own && (!to->bytes || to->at == to->size));
}

int64_t core_saved_bytes(const core_run *run)
{
    stream counting = {0};
    if (!run)
        return CORE_BAD_ARGUMENT;
    save_run(&counting, (core_run *)run);
    return counting.at;
}

int core_save(const core_run *run, uint8_t *bytes, int64_t size)
{
    stream writing = {bytes, 0, size, false, false};
    if (!run || !bytes || size < 0)
        return CORE_BAD_ARGUMENT;
    save_run(&writing, (core_run *)run);
    return writing.is_bad ? CORE_BAD_ARGUMENT : 0;
}

/* Check the members of groups, and find again what is not saved. */
static bool finish_restored(core_run *run)
{
    for (int32_t i = 0; i < run->group_count; i++) {
        group *own = &run->groups[i];
        for (int32_t at = 0; at < own->count; at++) {
            const attempt *one = attempt_at(run, own->members[at]);
            if (!one || one->group != i || (own->stages && (one->stage < 0 || one->stage >= own->stages)))
                return false;
        }
        recount(run, own);
        if (!reserve_scratch(run, own->count, own->stages > 0))
            return false;
    }
    return true;
}

core_run *core_restore(const uint8_t *bytes, int64_t size)
{
    stream reading = {(uint8_t *)bytes, 0, size, true, false};
    core_run *run = bytes && size >= 0 ? calloc(1, sizeof(*run)) : NULL;
    if (!run)
        return NULL;
    save_run(&reading, run);
    if (reading.is_bad || !finish_restored(run)) {
        core_run_free(run);
        return NULL;
    }
    return run;
}
