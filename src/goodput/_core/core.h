/* The account's core: from the rows of rank processes to time in states. Plain C, no Python.
 *
 * A run has attempts (one rank process each) and groups (attempts whose steps are compared). What a row is charged to
 * depends on the rows before it and on those of its group for the same steps, never on later ones, with one exception: how
 * much of an attempt's first step was compiling is known once the next CORE_FIRST_OTHERS single steps are. All times are
 * int64 nanoseconds. Calls return 0 or more, or one of the negative errors below; after an error nothing has changed
 * (but by core_fold, which may have folded the blocks before the one that lacked memory; its counts tell).
 * A run may be used by one thread at a time; runs are independent.
 *
 * To read on: attempt.c, how one row is charged, with history.c for what is a stall and values.c for where times are kept; group.c, which
 * steps are compared, compare.c and pipeline.c, what is moved by comparing them, and onset.c, who is slow; then run.c, read.c,
 * tail.c, blocks.c, peak.c and snapshot.c in any order. The state is in internal.h. The rules:
 *
 * - Time in phases is charged to their states. Between steps compute is unattributed; before the first step all is startup but
 *   restore, compile and rollout. Rows that contradict the one before are cut to fit and counted.
 * - A step, or the time between two, is a stall but for its planned phases (checkpoint, evaluation, rollout, restore, compile) if the
 *   rest of it is longer than the rank's threshold then: history.c. A planned phase beyond 10 times the longest so far, at
 *   least 30 minutes, is a stall, too.
 * - An attempt's first step is compile beyond the median of the next 15, as far as compute and unattributed time explain it. Until
 *   they are known, or the attempt has ended, that time is compile provisionally.
 * - A group's steps are compared once all ranks have them, or are absent or over: what a rank spent in communication beyond the least
 *   is waiting for the slowest (straggler); pipeline.c and onset.c have the rest. A rank that comes later is charged
 *   communication.
 * - Steps beyond an attempt's limit are lost, whole, and compared with nobody's. As a later restart sets the limit, rows that were folded
 *   before it was known are folded again from a snapshot.
 * - Rows of several steps are compared as sums, from one step that ends a row of every rank to the next.
 * - Time outside an attempt's bound is not charged: a row that crosses it counts in proportion, as does what is moved by comparing it. */
#ifndef GOODPUT_CORE_H
#define GOODPUT_CORE_H

#include <stdint.h>

#define CORE_VERSION 1

enum { CORE_NO_MEMORY = -1, CORE_BAD_ARGUMENT = -2, CORE_BAD_SNAPSHOT = -3 };

/* The states that a row can be charged to. */
enum {
    PRODUCTIVE, LOADER, H2D, COMMUNICATION, LAUNCH, CHECKPOINT, EVALUATION, ROLLOUT, COMPILE, STARTUP, RESTORE, STALL, UNATTRIBUTED,
    ROW_STATES
};

enum {
    CORE_PLANNED_STATES = 5,
    CORE_VALUE_MAX_BITS = 62,  /* no time and no count is larger */
    CORE_PHASES_MAX = 255,
    CORE_ATTEMPTS_MAX = 1 << 24,
    CORE_GROUPS_MAX = 1 << 24,
    CORE_STAGES_MAX = 1 << 12,
    CORE_WINDOW = 1024,        /* steps that a stall threshold is of */
    CORE_FIRST_OTHERS = 15,    /* steps that a first step is compared with */
    CORE_PENDING_MAX = 4096,   /* rows of a rank that wait for others of its group */
    CORE_STRETCHES_MAX = 8,    /* stretches of slow steps of an attempt */
    CORE_BLOCK_ROWS_MAX = 4096,
    CORE_LOSSES_MAX = 1 << 16  /* restarts that may make steps of an attempt lost */
};

/* A row: these, then of each phase its total so far, then of each phase the part of it outside steps. */
enum { ROW_NUMBER, ROW_STEP, ROW_END, ROW_SAMPLES, ROW_DEVICE, ROW_TOTALS };

/* Where a row went, as `core_fold` counts them. */
typedef struct {
    int64_t folded;
    int64_t repeated;  /* of a number that was folded: left out */
    int64_t wrong;     /* out of range: left out */
} core_counts;

/* Rows as the wire and the ledger have them, see blocks.c: `used` columns, in ascending order. */
typedef struct {
    int64_t count, cell_bytes;
    int32_t used;
    const uint8_t *columns, *widths, *cells;
    const int64_t *first, *least;
} core_block;

typedef struct {
    int64_t rank;
    int64_t start_ns;
    int32_t before;       /* the attempt of the rank before this one, whose step lengths it goes on with; -1 for its first */
    int32_t group;        /* from core_group */
    int32_t unit;         /* of a pipeline: the ranks that meet in a collective; else ignored */
    int32_t stage;        /* of a pipeline; else ignored */
    int32_t phases;
    const uint8_t *states; /* of each phase, below ROW_STATES */
} core_attempt_facts;

/* The columns of core_read. ROW_STATES of the first two each; communication less what was
 * moved to straggler and bubble. An unfixed first step's compute and unattributed time is in `compile`. */
enum {
    READ_INSIDE,
    READ_OUTSIDE = READ_INSIDE + ROW_STATES,
    READ_STRAGGLER = READ_OUTSIDE + ROW_STATES, /* moved out of communication: waiting for slower ranks */
    READ_BUBBLE,
    READ_CAUSED,           /* waiting of others for this rank */
    READ_CAUSED_IN_GROUP,  /* the same, of its unit alone, also where a slower stage covers it */
    READ_MATCHED,          /* length of compared steps */
    READ_COMPARED_STEPS,
    READ_LAST_STEPS,       /* compared steps in which others waited for it */
    READ_COMPARED_OWN,     /* own time of compared steps in the bounds of all ranks, but for the first one */
    READ_COMPARED_COUNT,   /* the number of these steps, those of rows of several too */
    READ_LATE_ROWS,        /* rows of new steps that came after these were compared, or after the next attempt's that they precede */
    READ_STEPS,            /* lost ones among them; those that end in the bound */
    READ_WORK,             /* kept steps in billionths, those that cross the bound in part */
    READ_COMPUTE,          /* all compute in the bound, whatever its state, lost too */
    READ_SAVED,            /* the same of saving checkpoints */
    READ_CLAMPED,          /* rows in the bound that contradicted the one before and were cut to fit */
    READ_ROWS,
    READ_NUMBER,           /* of the newest row */
    READ_TOP_STEP,         /* -1 without steps */
    READ_END,              /* of the newest row; the start without rows */
    READ_PENDING_ROWS,     /* rows whose step is not compared yet */
    READ_LOST,             /* time of lost steps, which is in no state */
    READ_LOST_STEPS,
    READ_SAMPLES,
    READ_KEPT_SAMPLES,     /* of kept steps */
    READ_DEVICE,           /* length of steps that the device's clock divided */
    READ_THRESHOLD,        /* from how long on a wait would be a stall now */
    READ_LENGTHS,          /* step lengths that it is of, and older ones */
    READ_PROVISIONAL,      /* 1 while the first step's compiling is not fixed */
    READ_SLOW,             /* 1 while the rank is slow */
    READ_FIRST_COMPARED,   /* the first step in which it was compared with peers, -1 before */
    READ_PLANNED,          /* the longest phase of its rank in each planned state: checkpoint, evaluation, rollout, compile, restore */
    READ_COUNT = READ_PLANNED + CORE_PLANNED_STATES
};

/* How `core_tail` takes the time after the last row. */
enum { TAIL_RUNNING, TAIL_DIED, TAIL_ENDED };
/* States of a tail beyond those of rows. */
enum { TAIL_LOST = ROW_STATES, TAIL_STATES };
/* After them all compute and saving of checkpoints in it, whatever their states. */
enum { TAIL_COMPUTE = TAIL_STATES, TAIL_SAVED, TAIL_COUNT };

/* What a watcher is told, all times as far as they lie in the bound. Rows less what was moved, with first steps as they were fixed,
 * sum to what core_read has at any time. */

/* A row as it was folded: `count` steps up to `step`, time by state inside and before them. Inside them communication has all waiting,
 * and a first step that is held (is_first) all compute and unattributed time in `compile`. */
typedef struct {
    int32_t attempt;
    int64_t step, count, end_ns;
    int64_t inside[ROW_STATES], outside[ROW_STATES];
    int32_t is_first;
} core_watched_row;

/* How much of a held first step was compiling is known: its time by state, `inside` of its row until then, and from now on. */
typedef struct {
    int32_t attempt;
    int64_t step;
    int64_t before[ROW_STATES], after[ROW_STATES];
} core_watched_first;

/* A row, or the sum of several, was compared: what of its communication is straggler and bubble, not both 0. */
typedef struct {
    int32_t attempt;
    int64_t first, last; /* steps */
    int64_t straggler_ns, bubble_ns;
} core_watched_move;

/* Called while rows are folded; each may be NULL. They must not use the run. */
typedef struct {
    void (*row)(void *context, const core_watched_row *row);
    void (*first)(void *context, const core_watched_first *first);
    void (*moved)(void *context, const core_watched_move *move);
    void *context;
} core_watcher;

typedef struct {
    int64_t first, last; /* steps; last is -1 while it lasts */
} core_stretch;

typedef struct core_run core_run;

int core_version(void);
core_run *core_run_new(int64_t least_threshold_ns);
void core_run_free(core_run *run);

/* A group of attempts whose steps are compared. With `stages` of 2 or more it is a pipeline of so many, of `microbatches`, or 0
 * where they are not known. Returns its index. */
int core_group(core_run *run, int32_t stages, int64_t microbatches);
/* Returns the attempt's index. A rank takes part in the steps that are compared from now on: so the ranks of a group are added
 * before the rows of the steps that they make together. */
int core_attempt(core_run *run, const core_attempt_facts *facts);
int core_attempts(const core_run *run);
int core_phases_of(const core_run *run, int32_t attempt);
/* More phases than before, of the same states as far as they were known. */
int core_phases(core_run *run, int32_t attempt, int32_t phases, const uint8_t *states);

/* From when to when time of an attempt is charged. Refused once a row outside the bound before or this one was folded. */
int core_bound(core_run *run, int32_t attempt, int64_t from_ns, int64_t to_ns);
/* Steps beyond `last` that follow are lost, since the attempt itself repeats them; no restart is charged for them. */
int core_again(core_run *run, int32_t attempt, int64_t last);
/* The last step of an attempt that counts, and the resume points of the `count` restarts after it, in order: a lost step is lost by
 * the first that resumed before it. Before its first row, or as long as no step beyond either limit was folded. */
int core_limit(core_run *run, int32_t attempt, int64_t limit, const int64_t *points, int32_t count);
/* Fold blocks of rows, one after the other: `rows[i]` rows of `attempts[i]`, each of ROW_TOTALS + 2 * phases values, in ascending
 * number. A number that is more than one above that before stands for several steps. `size` is the number of all values. */
int core_fold(core_run *run, const int32_t *attempts, const int64_t *rows, int64_t blocks, const int64_t *values, int64_t size,
              core_counts *counts);
/* The rows of a step block, whose phases are those of the attempt. Refused where it cannot be decoded. */
int core_fold_block(core_run *run, int32_t attempt, const core_block *block, core_counts *counts);
/* Who is told of rows from now on; NULL for nobody. It is no part of a snapshot. */
int core_watch(core_run *run, const core_watcher *watcher);
/* No more rows will come: the first step is fixed, and its group waits for it no longer. */
int core_end(core_run *run, int32_t attempt);
/* The rank was not heard of: its group goes on without it until it has rows again. */
int core_absent(core_run *run, int32_t attempt);

/* What is known of `count` attempts from one on, READ_COUNT values each. */
int core_read(const core_run *run, int32_t attempt, int32_t count, int64_t *values);
/* The last step of a group that was compared, -1 before the first. */
int64_t core_settled(const core_run *run, int32_t group);
/* The waiting for a stage of a pipeline, in ns, and in how many steps there was some. */
int core_read_stage(const core_run *run, int32_t group, int32_t stage, int64_t *caused_ns, int64_t *steps);
/* The newest stretches in which the rank was slow; returns how many, at most CORE_STRETCHES_MAX. */
int core_read_stretches(const core_run *run, int32_t attempt, core_stretch *stretches);
/* Samples per second of the fastest 32 consecutive steps of each attempt, of fewer their own; 0 where they are not known. */
int core_read_rates(const core_run *run, double *values, int64_t attempts);
/* By a restart of core_limit, the number of lost steps and their time. */
int core_read_loss(const core_run *run, int32_t attempt, int32_t restart, int64_t *steps, int64_t *ns);
/* Own time per phase of kept steps in the bound without a stall and but for a single first one: `phases` values; returns 0. `*steps`
 * is their number. */
int core_read_phases(const core_run *run, int32_t attempt, int64_t *values, int32_t phases, int64_t *steps);
/* The time from the newest row to `end_ns`, TAIL_COUNT values, from the totals then (`phases`, or 0 where they are not
 * known) and the state of the phase that was open. */
int core_tail(const core_run *run, int32_t attempt, const int64_t *totals, int32_t phases, int32_t open_state, int64_t end_ns,
              int32_t how, int64_t *values);

/* The bytes that a snapshot takes; core_save writes as many. A snapshot is read by the version that wrote it alone. */
int64_t core_saved_bytes(const core_run *run);
int core_save(const core_run *run, uint8_t *bytes, int64_t size);
core_run *core_restore(const uint8_t *bytes, int64_t size);
/* The memory that a run takes now. */
int64_t core_memory_bytes(const core_run *run);

#endif
