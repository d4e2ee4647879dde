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

/* What a rank's attempts hand on: lengths of its steps, those that can matter to a threshold one by one. */
typedef struct {
    uint32_t count, kept, room;
    long_step *steps;
    int64_t planned_ns[CORE_PLANNED_STATES]; /* the longest phase of each planned state so far */
    int32_t newest;                          /* the attempt whose rows came last, -1 before */
} history;

/* What was known of a rank when the first row of its next attempt came. */
typedef struct {
    int64_t threshold_ns, planned_ns[CORE_PLANNED_STATES];
} judgement;

/* One step of an attempt, or several, as its group compares them. */
typedef struct {
    int64_t first, last; /* step indexes */
    int64_t communication, own;
    int64_t within, length; /* the part of communication and of the steps that lies in the attempt's bound */
    int32_t beginning; /* 1 if the attempt's first step is among them */
    int32_t counted;   /* 1 if they end in the attempt's bound */
} span;

/* An attempt's first step until its compiling is fixed. */
typedef struct {
    int64_t inside[ROW_STATES], threshold_ns;
    int64_t step;
    int64_t part; /* how much of it lies in the attempt's bound */
    int64_t others;
    int64_t lengths[CORE_FIRST_OTHERS], works[CORE_FIRST_OTHERS];
} first_step;

/* Whether a rank is slow: cumulative sums, see onset.c. */
typedef struct {
    double sum, sum_beside;
    int64_t began, began_beside, first; /* steps; the first that was compared, -1 before */
    int64_t slow, count;
    core_stretch *stretches; /* CORE_STRETCHES_MAX of them, allocated with the first */
} onset;

/* The fastest stretch of consecutive steps with samples, see peak.c. */
typedef struct {
    double best_samples, best_ns, last_samples, last_ns;
    double samples, ns; /* of the stretch that is not complete yet */
    int64_t steps, is_known;
} peak;

/* What a restart made lost of an attempt. */
typedef struct {
    int64_t point, steps, ns; /* the step that it resumed at */
} loss;

typedef struct {
    int64_t rank;
    int32_t group, unit, stage, layout, phases, history;
    int64_t *totals; /* by phase, of the newest row; after them the parts outside steps, then own time of usual steps */
    int64_t row_number, step, end_ns, samples, samples_total, device_total_ns;
    int64_t inside[ROW_STATES], gaps[ROW_STATES];
    int64_t from_ns, to_ns; /* its bound: time outside it is not charged */
    int64_t limit, again;   /* the last step that counts, and that it does not repeat itself */
    int64_t lost_ns, lost_steps, kept_samples, work;
    peak peak;
    loss *losses;
    int32_t loss_count;
    int64_t rows, steps, usual_steps, device_ns, compute_ns, saved_ns, clamped;
    first_step *first;
    judgement *last; /* of an attempt that another one followed */
    /* In its group: */
    int64_t straggler_ns, bubble_ns, caused_ns, caused_in_group_ns, matched_ns, compared_steps, last_steps, late_rows;
    int64_t compared_own_ns, compared_count; /* own time of the compared steps, and their number, rows of several too */
    span *waiting; /* a ring of `room`, a power of two */
    int32_t room, head, queued;
    int32_t is_ended, is_absent, is_taken;
    span taken; /* summed from the ring up to the next step that all have reached, if is_taken */
    onset onset;
} attempt;

typedef struct {
    int64_t caused_ns, steps;
} stage_sums;

typedef struct {
    int32_t stages; /* 0 but for a pipeline */
    int64_t microbatches;
    stage_sums *by_stage;
    int32_t *members, count, room; /* attempts, by rank */
    int32_t lacking;               /* members that the group waits for */
    int64_t target;                /* the step that all must reach, where some have rows of several steps; else -1 */
    int64_t settled;               /* the last step that was compared, -1 before the first */
} group;

/* One member's part of a comparison. */
typedef struct {
    attempt *of;
    const span *step;
    int64_t straggler_ns, bubble_ns; /* what is moved out of its communication, in the bound */
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

/* The states of the phases of attempts that have the same. */
typedef struct {
    int32_t phases;
    uint8_t *states;
} layout;

struct core_run {
    int64_t least_stall_ns;
    core_watcher watcher;
    layout *layouts;
    int32_t layout_count, layout_room;
    attempt *attempts;
    int32_t count, room;
    group *groups;
    int32_t group_count, group_room;
    history *histories;
    int32_t history_count, history_room;
    /* For one comparison at a time: */
    compared *compared;
    unit *units;
    int64_t *sorted;
    int32_t compared_room, unit_room, sorted_room;
    int64_t *rows; /* of one block, decoded */
    int32_t row_room;
};

/* run.c */
bool grow(void *pointer, int32_t *room, int64_t wanted, size_t size);
bool reserve_scratch(core_run *run, int32_t members, bool is_pipeline);

/* history.c */
int64_t history_threshold_ns(const history *own, int64_t least_ns);
bool history_reserve(history *own, int64_t rows);
judgement judge(const core_run *run, const attempt *one);
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
const uint8_t *states_of(const core_run *run, const attempt *one);
void fix_first(core_run *run, attempt *one);
void limit_planned(const int64_t *longest_ns, int64_t threshold_ns, int64_t *states);
void settle_beginning(int64_t *gap, bool is_single);
void charge_first(const first_step *first, int64_t *states);

/* group.c */
bool group_reserve(core_run *run, attempt *one, int64_t rows);
void group_wait(core_run *run, attempt *one, const span *step, bool is_new);
void group_settle(core_run *run, group *own);
bool is_lacking(const core_run *run, const attempt *one);

/* compare.c */
void compare_members(core_run *run, group *own, int32_t count);
void blame(wide waited_ns, compared *members, int32_t count, bool is_in_group);
int64_t within(const span *step, int64_t ns);

/* pipeline.c */
void compare_pipeline(core_run *run, group *own, int32_t count, int64_t steps);

/* onset.c */
void onsets_note(core_run *run, compared *members, int32_t count, int64_t step);

#endif
