/* What the core's files share. */
#ifndef GOODPUT_CORE_INTERNAL_H
#define GOODPUT_CORE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "core.h"

#define VALUE_MAX ((INT64_C(1) << CORE_VALUE_MAX_BITS) - 1)
#define SECOND_NS INT64_C(1000000000)
#define PLANNED_LEAST_NS (1800 * SECOND_NS)
/* A stall is longer than so many usual steps, a planned phase longer than so many of its longest. */
#define TIMES 10

typedef __int128 wide;

/* A long step of the last CORE_WINDOW of a rank, and how many later ones are as long or longer. */
typedef struct {
    int64_t ns;
    uint32_t number, longer;
} long_step;

/* The longest phase of each planned state so far, and the lengths of steps that can matter to a threshold. */
typedef struct {
    int64_t planned_ns[CORE_PLANNED_STATES];
    long_step steps[];
} long_times;

/* What is known of a rank for an attempt: from its own rows, and from those of the attempts before it that ended before it began. */
typedef struct {
    uint32_t count, kept, room; /* step lengths; those in `past`, and the room there */
    long_times *past;           /* NULL as long as nothing was long */
} history;

/* One step of an attempt, or several, as its group compares them. */
typedef struct {
    int64_t first, last; /* step indexes */
    int64_t communication, own;
    int64_t within, length; /* the part of communication and of the steps that lies in the attempt's bound */
    int64_t is_counted;     /* whether they end in the bound */
} span;

/* An attempt's first step until its compiling is fixed. */
typedef struct {
    int64_t inside[ROW_STATES], threshold_ns, step;
    int64_t part; /* how much of it lies in the attempt's bound */
    int64_t others;
    int64_t lengths[CORE_FIRST_OTHERS], works[CORE_FIRST_OTHERS];
} first_step;

/* Whether a rank is slow: cumulative sums, see onset.c. */
typedef struct {
    double sum, sum_beside;
    int64_t began, began_beside, first; /* steps; the first that was compared, -1 before */
} onset;

/* The fastest stretch of consecutive steps with samples, see peak.c. */
typedef struct {
    double best_samples, best_ns, last_samples, last_ns;
    double samples, ns; /* of the stretch that is not complete yet */
    int64_t steps, is_known;
} peak;

/* Of an attempt that counts samples, or whose steps the device's clock divides. */
typedef struct {
    int64_t samples, kept_samples, device_ns;
    int64_t samples_total, device_total_ns; /* of the newest row */
    peak peak;
} sample_sums;

/* What a restart made lost of an attempt. */
typedef struct {
    int64_t point, steps, ns; /* the step that it resumed at */
} loss;

/* Of an attempt that steps can be lost of. */
typedef struct {
    int64_t limit, again; /* the last step that counts, and that it does not repeat itself */
    int64_t lost_ns, lost_steps, count;
    loss losses[];
} limits;

/* What is added up of an attempt beside its times by state, as core_read has it from READ_STRAGGLER on. */
typedef struct {
    int64_t straggler_ns, bubble_ns, caused_ns, caused_in_group_ns, matched_ns, compared_steps, last_steps;
    int64_t compared_own_ns, compared_count, late_rows, steps, work, compute_ns, saved_ns, clamped;
    /* The same whatever its bound is: */
    int64_t rows, number, top_step, end_ns;
} attempt_sums;

/* Times of an attempt by state and by phase, many of which stay 0: columns of its `values`, at places that its layout gives them when
 * the first of its attempts has time there. By phase: totals of the newest row, those outside steps, own time of usual steps. */
enum { INSIDE, OUTSIDE = ROW_STATES, PHASES = 2 * ROW_STATES, NOWHERE = UINT16_MAX };
enum { TOTAL, TOTAL_OUTSIDE, USUAL, PHASE_COLUMNS };

/* Attempts whose phases have the same states. */
typedef struct {
    int32_t phases, used;
    uint8_t *states;
    uint16_t *places, *columns; /* of each column, or NOWHERE; of each of `used` places */
} layout;

typedef struct {
    /* Up to `queued` these are saved as they are, so there are no gaps between them. */
    int64_t rank, start_ns, from_ns, to_ns, usual_steps; /* from, to: its bound, time outside it is not charged */
    attempt_sums sums;
    onset onset;
    int32_t group, unit, stage, layout;
    int32_t before, next; /* of its rank: the one whose history it goes on with, -1 once it does; the one after it, -1 for none */
    uint16_t width;       /* of `values` */
    uint8_t is_ended, is_absent, is_slow, stretch_count;
    /* What waits for the others of its group: the oldest may be a sum of rows up to the next step that all have reached, and may have
     * the attempt's first step in it. */
    uint8_t is_summed, is_beginning;
    int32_t queued;
    int32_t head, room;
    span *waiting; /* a ring of `room` */
    int64_t *values;
    history past;
    limits *limits;          /* NULL without one, as are those below */
    sample_sums *samples;
    first_step *first;       /* while it is held */
    core_stretch *stretches; /* in which it was slow; room for CORE_STRETCHES_MAX, the newest last */
} attempt;

typedef struct {
    int64_t caused_ns, steps;
} stage_sums;

typedef struct {
    int64_t microbatches;
    int64_t target;  /* the step that all must reach, where some have rows of several steps; else -1 */
    int64_t settled; /* the last step that was compared, -1 before the first */
    int32_t stages, count; /* stages: 0 but for a pipeline; members */
    int32_t room, lacking; /* lacking: members that the group waits for */
    int32_t *members;      /* attempts, by rank */
    stage_sums *by_stage;
} group;

/* One member's part of a comparison. */
typedef struct {
    attempt *of;
    const span *step;
    bool is_last, is_longest, is_counted; /* the latter two of a pipeline */
} compared;

/* Of a pipeline, ranks of one stage that meet in a collective, in one step. */
typedef struct {
    int32_t from, count, stage;
    int64_t least_ns, own_ns; /* the communication that all share; own time of those that waited least */
    int64_t for_rank_ns, for_stage_ns;
    int64_t usual_ns; /* the lower median of its stage's own times */
    bool is_whole_stage;
} unit;

struct core_run {
    int64_t least_threshold_ns;
    core_watcher watcher;
    attempt *folding; /* whose rows are being folded; the room that was made for them is kept meanwhile */
    layout *layouts;
    int32_t layout_count, layout_room;
    attempt *attempts;
    int32_t count, room;
    group *groups;
    int32_t group_count, group_room;
    /* For one comparison at a time: */
    compared *compared;
    unit *units;
    int64_t *sorted;
    int32_t compared_room, unit_room, sorted_room;
    int64_t *rows; /* of one block, decoded */
    int32_t row_room;
};

static inline attempt *attempt_at(const core_run *run, int32_t index)
{
    return run && index >= 0 && index < run->count ? &run->attempts[index] : NULL;
}

static inline int64_t phase_column(int32_t phase, int what)
{
    return PHASES + (int64_t)PHASE_COLUMNS * phase + what;
}

static inline int64_t value_at(const layout *own, const attempt *one, int64_t column)
{
    return own->places[column] < one->width ? one->values[own->places[column]] : 0;
}

/* run.c */
bool grow(void *pointer, int32_t *room, int64_t wanted, size_t size);
bool reserve_scratch(core_run *run, int32_t members, bool is_pipeline);

/* values.c */
bool layout_open(layout *own);
int32_t layout_of(core_run *run, int32_t phases, const uint8_t *states);
bool values_move(const layout *from, layout *to, attempt *one);
bool values_reserve(layout *own, attempt *one, const int64_t *row, bool is_long);
void values_add(const layout *own, attempt *one, int column, const int64_t *states);
void totals_get(const layout *own, const attempt *one, int64_t *totals);
void totals_put(const layout *own, attempt *one, const int64_t *totals);

/* history.c */
int64_t history_threshold_ns(const history *own, int64_t least_ns);
const int64_t *planned_of(const history *own);
bool history_reserve(history *own, int64_t rows);
const history *known_of(const core_run *run, const attempt *one);
void history_inherit(history *own, const history *from);
void history_add(history *own, int64_t ns, int64_t least_ns);

/* states.c */
int planned_place(int state);
bool is_planned(int state);
int64_t sum_of(const int64_t *values, int count);
int64_t unplanned_ns(const int64_t *states);
void move_to_stall(int64_t *states);
void fit(wide *gap, wide *inside, int64_t spent_ns);
int64_t scaled(int64_t ns, wide part, wide whole);
void share(int64_t *states, int64_t part, int64_t whole);
int64_t overlap(const attempt *one, int64_t from_ns, int64_t to_ns);
void add_bounded(int64_t *sum, wide ns);
int64_t median_of(int64_t *values, int64_t count);
int ascending(const void *one, const void *other);

/* peak.c */
void peak_add(peak *own, int64_t count, double samples, double ns);
double peak_rate(const peak *own);

/* attempt.c */
int fold_rows(core_run *run, attempt *one, const int64_t *values, int64_t rows, core_counts *counts);
void fix_first(core_run *run, attempt *one);
void limit_planned(const int64_t *longest_ns, int64_t threshold_ns, int64_t *states);
void settle_beginning(int64_t *gap, bool is_single);
void charge_first(const first_step *first, int64_t *states);

/* group.c */
bool group_reserve(core_run *run, attempt *one, int64_t rows);
void group_wait(core_run *run, attempt *one, const span *step, bool is_beginning, bool is_new);
void group_settle(core_run *run, group *own);
bool is_lacking(const core_run *run, const attempt *one);
void recount(core_run *run, group *own);
span *waiting_at(const attempt *one, int32_t place);
void free_waiting(attempt *one);

/* compare.c */
void compare_members(core_run *run, group *own, int32_t count);
void move(const core_run *run, attempt *one, int64_t straggler_ns, int64_t bubble_ns);
void blame(wide waited_ns, compared *members, int32_t count, bool is_in_group);
int64_t within(const span *step, int64_t ns);

/* pipeline.c */
int by_unit(const void *one, const void *other);
void compare_pipeline(core_run *run, group *own, int32_t count, int64_t steps);

/* onset.c */
void onsets_note(core_run *run, compared *members, int32_t count, int64_t step);

#endif
