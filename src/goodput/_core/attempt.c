/* The rows of one attempt, one after the other, into sums by state. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Of work, in a step. */
#define WORK_PARTS INT64_C(1000000000)

/* A row as differences to the one before. */
typedef struct {
    int64_t count, step, end_ns, length; /* of the steps; the rest of the time is before them */
    int64_t gap[ROW_STATES], inside[ROW_STATES];
    int64_t part, kept; /* how much of `length` lies in the attempt's bound; steps that are not lost */
    bool is_cut, is_counted; /* the latter: its steps end in the bound */
} row;

/* Move what exceeds the limit of a planned state to `stall`. */
static void limit_state(int64_t longest, int64_t threshold_ns, int64_t *states, int state)
{
    int64_t limit = PLANNED_LEAST_NS;
    if (longest > limit / TIMES)
        limit = longest > VALUE_MAX / TIMES ? VALUE_MAX : longest * TIMES;
    limit = threshold_ns > limit ? threshold_ns : limit;
    int64_t excess = states[state] - limit;
    if (excess > 0) {
        states[state] -= excess;
        states[STALL] += excess;
    }
}

void limit_planned(const int64_t *longest_ns, int64_t threshold_ns, int64_t *states)
{
    for (int state = 0; state < ROW_STATES; state++)
        if (is_planned(state) && states[state] > PLANNED_LEAST_NS)
            limit_state(longest_ns[planned_place(state)], threshold_ns, states, state);
}

static void note_planned(history *own, const int64_t *states)
{
    for (int state = 0; state < ROW_STATES; state++) {
        int place = planned_place(state);
        if (place >= 0 && states[state] > own->planned_ns[place])
            own->planned_ns[place] = states[state];
    }
}

/* Of the time before the first step all is startup, but for what these states name. For a row of several steps it is not known
 * where the time outside them lies, so named phases keep it. */
void settle_beginning(int64_t *gap, bool is_single)
{
    int64_t moved = 0;
    for (int state = 0; state < ROW_STATES; state++) {
        bool stays = state == RESTORE || state == COMPILE || state == ROLLOUT || state == STALL;
        if (is_single ? !stays : state == UNATTRIBUTED) {
            moved += gap[state];
            gap[state] = 0;
        }
    }
    gap[STARTUP] += moved;
}

/* The row's time by state, summed with care: it contradicts the one before. */
static void fit_row(const attempt *one, const uint8_t *states, const int64_t *values, int64_t spent_ns, row *into)
{
    wide gap[ROW_STATES] = {0}, inside[ROW_STATES] = {0}, known = 0;
    const int64_t *totals = values + ROW_TOTALS, *outside = totals + one->phases;
    bool is_wrong = false;
    for (int i = 0; i < one->phases; i++) {
        wide beyond = (wide)outside[i] - one->totals[one->phases + i];
        gap[states[i]] += beyond;
        inside[states[i]] += (wide)totals[i] - one->totals[i] - beyond;
    }
    for (int i = 0; i < ROW_STATES; i++) {
        is_wrong |= gap[i] < 0 || inside[i] < 0;
        known += gap[i] + inside[i];
    }
    into->is_cut = is_wrong || known != spent_ns || values[ROW_END] < one->end_ns;
    if (into->is_cut)
        fit(gap, inside, spent_ns);
    for (int i = 0; i < ROW_STATES; i++) {
        into->gap[i] = (int64_t)gap[i];
        into->inside[i] = (int64_t)inside[i];
    }
}

static void divide_row(const attempt *one, const uint8_t *states, const int64_t *values, row *into)
{
    const int64_t *totals = values + ROW_TOTALS, *outside = totals + one->phases;
    int64_t spent = values[ROW_END] - one->end_ns, known = 0;
    bool is_plain = spent >= 0;
    memset(into, 0, sizeof(*into));
    into->count = values[ROW_NUMBER] - one->row_number;
    into->step = values[ROW_STEP];
    into->end_ns = spent > 0 ? values[ROW_END] : one->end_ns;
    for (int i = 0; is_plain && i < one->phases; i++) {
        int64_t grown = totals[i] - one->totals[i], beyond = outside[i] - one->totals[one->phases + i];
        is_plain = beyond >= 0 && grown >= beyond && grown <= spent - known;
        known += grown;
        into->gap[states[i]] += beyond;
        into->inside[states[i]] += grown - beyond;
    }
    if (!is_plain || known != spent)
        fit_row(one, states, values, spent > 0 ? spent : 0, into);
    into->length = sum_of(into->inside, ROW_STATES);
    into->part = overlap(one, into->end_ns - into->length, into->end_ns);
    bool is_begun = into->end_ns > one->from_ns || (!into->length && into->end_ns == one->from_ns);
    into->is_counted = into->end_ns <= one->to_ns && is_begun;
    int64_t limit = one->again < one->limit ? one->again : one->limit;
    int64_t beyond = into->step > limit ? into->step - limit : 0;
    into->kept = beyond < into->count ? into->count - beyond : 0;
}

/* Charge the steps of a row that are beyond the limit; what is left of it are those before. */
static void lose(attempt *one, row *own)
{
    int64_t lost = own->is_counted ? own->count - own->kept : 0;
    int64_t ns = own->part - scaled(own->part, own->kept, own->count);
    one->lost_steps += lost;
    one->lost_ns += ns;
    for (int32_t i = 0; i < one->loss_count && own->step <= one->again; i++)
        if (one->losses[i].point < own->step) {
            one->losses[i].steps += lost;
            one->losses[i].ns += ns;
            break;
        }
    share(own->inside, own->part - ns, own->length);
}

/* Take the row's cumulative values as those that the next one is compared with. */
static void take_totals(attempt *one, const int64_t *values, const row *own, bool is_usual)
{
    const int64_t *totals = values + ROW_TOTALS, *outside = totals + one->phases;
    int64_t *before = one->totals, *before_outside = before + one->phases, *usual = before_outside + one->phases;
    for (int i = 0; i < one->phases; i++) {
        if (is_usual)
            usual[i] += totals[i] - before[i] - (outside[i] - before_outside[i]);
        before[i] = totals[i];
        before_outside[i] = outside[i];
    }
    one->usual_steps += is_usual ? own->count : 0;
    one->samples_total = values[ROW_SAMPLES];
    one->device_total_ns = values[ROW_DEVICE];
    one->rows++;
    one->steps += own->is_counted ? own->count : 0;
    one->row_number = values[ROW_NUMBER];
    one->end_ns = own->end_ns;
    one->step = own->step > one->step ? own->step : one->step;
}

static void count_samples(attempt *one, const int64_t *values, const row *own)
{
    int64_t samples = values[ROW_SAMPLES] - one->samples_total, device_ns = values[ROW_DEVICE] - one->device_total_ns;
    bool is_whole = own->length ? own->part == own->length : own->is_counted;
    samples = samples > 0 ? samples : 0;
    device_ns = device_ns < 0 ? 0 : device_ns > own->length ? own->length : device_ns;
    if (samples && (own->count > 1 || one->rows)) /* A first step is no measure of the throughput. */
        peak_add(&one->peak, own->count, (double)samples, (double)own->length);
    add_bounded(&one->samples, is_whole ? samples : scaled(samples, own->part, own->length));
    int64_t kept = scaled(samples, own->kept, own->count);
    int64_t work = own->kept > VALUE_MAX / WORK_PARTS ? VALUE_MAX : own->kept * WORK_PARTS;
    add_bounded(&one->kept_samples, is_whole ? kept : scaled(kept, own->part, own->length));
    add_bounded(&one->work, is_whole ? work : scaled(work, own->part, own->length));
    one->device_ns += is_whole ? device_ns : scaled(device_ns, own->part, own->length);
}

static void add_states(int64_t *sums, const int64_t *states)
{
    for (int i = 0; i < ROW_STATES; i++)
        sums[i] += states[i];
}

/* Move to `compile` the first step's excess over the usual, as far as compute and unattributed time explain it. */
static void move_excess(first_step *first)
{
    if (!first->others)
        return;
    int64_t *inside = first->inside, work = inside[PRODUCTIVE] + inside[UNATTRIBUTED];
    int64_t excess = sum_of(inside, ROW_STATES) - median_of(first->lengths, first->others);
    int64_t beyond = work - median_of(first->works, first->others);
    excess = beyond < excess ? beyond : excess;
    if (excess <= 0)
        return;
    int64_t from_compute = excess < inside[PRODUCTIVE] ? excess : inside[PRODUCTIVE];
    inside[PRODUCTIVE] -= from_compute;
    inside[UNATTRIBUTED] -= excess - from_compute;
    inside[COMPILE] += excess;
}

static void stall_if_long(int64_t *states, int64_t threshold_ns)
{
    if (unplanned_ns(states) > threshold_ns)
        move_to_stall(states);
}

static int64_t own_ns(const int64_t *inside)
{
    return sum_of(inside, ROW_STATES) - inside[COMMUNICATION] - inside[COMPILE] - inside[STALL];
}

/* What of a held first step lies in the bound, by state, as long as it is not known how much of it was compiling. */
void charge_first(const first_step *first, int64_t *states)
{
    memcpy(states, first->inside, sizeof(first->inside));
    states[COMPILE] += states[PRODUCTIVE] + states[UNATTRIBUTED];
    states[PRODUCTIVE] = states[UNATTRIBUTED] = 0;
    share(states, first->part, sum_of(states, ROW_STATES));
}

/* The first step is charged for good; the span of it is the first that waits in its group. */
void fix_first(core_run *run, attempt *one)
{
    first_step *first = one->first;
    if (!first)
        return;
    bool was_lacking = is_lacking(run, one);
    core_watched_first watched = {.attempt = (int32_t)(one - run->attempts), .step = first->step};
    charge_first(first, watched.before);
    move_excess(first);
    stall_if_long(first->inside, first->threshold_ns);
    int64_t communication = first->inside[COMMUNICATION], own = own_ns(first->inside);
    share(first->inside, first->part, sum_of(first->inside, ROW_STATES));
    add_states(one->inside, first->inside);
    if (one->queued && one->waiting[one->head].beginning) {
        one->waiting[one->head].communication = communication;
        one->waiting[one->head].within = first->inside[COMMUNICATION];
        one->waiting[one->head].own = own;
    }
    if (run->watcher.first) {
        memcpy(watched.after, first->inside, sizeof(watched.after));
        run->watcher.first(run->watcher.context, &watched);
    }
    free(first);
    one->first = NULL;
    run->groups[one->group].lacking += is_lacking(run, one) - was_lacking;
}

static void note_other(first_step *first, const row *own)
{
    if (!first)
        return;
    first->lengths[first->others] = own->length;
    first->works[first->others++] = own->inside[PRODUCTIVE] + own->inside[UNATTRIBUTED];
}

static void settle_gap(attempt *one, row *own, int64_t threshold_ns)
{
    /* Compute outside steps belongs to no step. */
    own->gap[UNATTRIBUTED] += own->gap[PRODUCTIVE];
    own->gap[PRODUCTIVE] = 0;
    if (!one->rows)
        settle_beginning(own->gap, own->count == 1);
    else if (own->count == 1)
        stall_if_long(own->gap, threshold_ns);
    int64_t length = sum_of(own->gap, ROW_STATES), began_ns = own->end_ns - own->length;
    share(own->gap, overlap(one, began_ns - length, began_ns), length);
    add_states(one->gaps, own->gap);
}

/* The first step waits for those that it is compared with. */
static void hold_first(attempt *one, const row *own, int64_t threshold_ns, span *step)
{
    *step = (span){own->step, own->step, own->inside[COMMUNICATION], own_ns(own->inside), 0, own->part, true, own->is_counted};
    memcpy(one->first->inside, own->inside, sizeof(own->inside));
    one->first->threshold_ns = threshold_ns;
    one->first->step = own->step;
    one->first->part = own->part;
}

/* Charge the time in steps of a row, of which `step` is what its group compares; returns whether it is a stall. */
static bool settle_step(core_run *run, attempt *one, row *own, int64_t threshold_ns, span *step)
{
    int64_t stalled_ns = own->inside[STALL];
    if (!one->rows) { /* A first row of several steps, or a lost one, is not held back. */
        free(one->first);
        one->first = NULL;
    }
    if (own->count == 1 && one->rows) {
        note_other(one->first, own);
        history_add(&run->histories[one->history], own->length, run->least_stall_ns);
    }
    if (own->count == 1)
        stall_if_long(own->inside, threshold_ns);
    bool is_stall = own->inside[STALL] > stalled_ns;
    *step = (span){own->step - own->count + 1, own->step, own->inside[COMMUNICATION], own_ns(own->inside), 0, own->part, false, own->is_counted};
    if (own->kept < own->count)
        lose(one, own);
    else
        share(own->inside, own->part, own->length);
    step->within = own->inside[COMMUNICATION];
    add_states(one->inside, own->inside);
    return is_stall;
}

static void tell(const core_run *run, const attempt *one, const row *own, bool is_held)
{
    core_watched_row told = {(int32_t)(one - run->attempts), own->step, own->count, own->end_ns, {0}, {0}, is_held};
    if (is_held)
        charge_first(one->first, told.inside);
    else
        memcpy(told.inside, own->inside, sizeof(told.inside));
    memcpy(told.outside, own->gap, sizeof(told.outside));
    run->watcher.row(run->watcher.context, &told);
}

/* Time of a row in a state, in steps and before them, as far as it lies in the attempt's bound. */
static int64_t in_bound(const attempt *one, const row *own, int state)
{
    int64_t length = sum_of(own->gap, ROW_STATES), began_ns = own->end_ns - own->length;
    int64_t inside = own->part == own->length ? own->inside[state] : scaled(own->inside[state], own->part, own->length);
    int64_t part = own->gap[state] ? overlap(one, began_ns - length, began_ns) : length;
    return inside + (part == length ? own->gap[state] : scaled(own->gap[state], part, length));
}

static void fold_row(core_run *run, attempt *one, const int64_t *values)
{
    history *past = &run->histories[one->history];
    row own;
    divide_row(one, states_of(run, one), values, &own);
    int64_t spent = own.end_ns - one->end_ns;
    /* No wait is a stall that is not longer than the least, so mostly the threshold need not be known. */
    bool is_long = spent > run->least_stall_ns || spent > PLANNED_LEAST_NS;
    int64_t threshold = is_long ? history_threshold_ns(past, run->least_stall_ns) : run->least_stall_ns;
    if (own.count == 1 && is_long) {
        limit_planned(past->planned_ns, threshold, own.gap);
        limit_planned(past->planned_ns, threshold, own.inside);
    }
    if (spent > PLANNED_LEAST_NS / TIMES) { /* A shorter phase raises no limit. */
        note_planned(past, own.gap);
        note_planned(past, own.inside);
    }
    bool is_first = !one->rows, is_lost = own.kept < own.count, is_whole = own.length ? own.part == own.length : own.is_counted;
    span step;
    bool is_held = is_first && own.count == 1 && !is_lost, is_stall = false;
    one->compute_ns += in_bound(one, &own, PRODUCTIVE);
    one->saved_ns += in_bound(one, &own, CHECKPOINT);
    one->clamped += own.is_cut && own.is_counted;
    settle_gap(one, &own, threshold);
    if (is_held)
        hold_first(one, &own, is_long ? threshold : VALUE_MAX, &step);
    else
        is_stall = settle_step(run, one, &own, threshold, &step);
    count_samples(one, values, &own);
    bool is_single_first = is_first && own.count == 1, is_new = own.step > one->step;
    take_totals(one, values, &own, !is_single_first && !own.is_cut && !is_stall && !is_lost && is_whole);
    if (run->watcher.row)
        tell(run, one, &own, is_held);
    step.beginning = is_first;
    /* Also of a step outside the bound, so that those of others are compared with it. */
    if (!is_lost)
        group_wait(run, one, &step, is_new);
    if (one->first && one->first->others == CORE_FIRST_OTHERS) {
        fix_first(run, one);
        group_settle(run, &run->groups[one->group]);
    }
}

static bool is_in_range(const int64_t *values, int32_t phases)
{
    bool is_good = true;
    for (int i = 0; i < ROW_TOTALS + 2 * phases; i++)
        is_good &= values[i] >= 0 && values[i] <= VALUE_MAX;
    return is_good && values[ROW_NUMBER] > 0;
}

/* Keep what is known of the rank for the attempt before this one, which begins; false without memory. */
static bool close_before(core_run *run, const attempt *one)
{
    history *past = &run->histories[one->history];
    int32_t index = (int32_t)(one - run->attempts);
    if (past->newest == index)
        return true;
    attempt *before = past->newest >= 0 ? &run->attempts[past->newest] : NULL;
    if (before && !before->last) {
        judgement now = judge(run, before), *last = malloc(sizeof(*last));
        if (!last)
            return false;
        *last = now;
        before->last = last;
    }
    past->newest = index;
    return true;
}

/* Make room for all that these rows may need, so that folding them cannot fail. */
static bool reserve(core_run *run, attempt *one, const int64_t *values, int64_t rows, int64_t width)
{
    int64_t end_ns = one->end_ns, number = one->row_number, long_rows = 0;
    for (int64_t at = 0; at < rows; at++) {
        const int64_t *own = values + at * width;
        if (own[ROW_NUMBER] <= number || !is_in_range(own, one->phases))
            continue;
        number = own[ROW_NUMBER];
        long_rows += own[ROW_END] - end_ns > run->least_stall_ns / TIMES;
        end_ns = own[ROW_END] > end_ns ? own[ROW_END] : end_ns;
    }
    if (long_rows && !history_reserve(&run->histories[one->history], long_rows))
        return false;
    if (!one->rows && rows && !one->first) {
        one->first = calloc(1, sizeof(*one->first));
        if (!one->first)
            return false;
    }
    return group_reserve(run, one, rows) && (number == one->row_number || close_before(run, one));
}

int core_fold(core_run *run, int32_t attempt_index, const int64_t *values, int64_t rows, int32_t phases, core_counts *counts)
{
    if (!run || attempt_index < 0 || attempt_index >= run->count || rows < 0 || (rows && !values) || !counts)
        return CORE_BAD_ARGUMENT;
    attempt *one = &run->attempts[attempt_index];
    int64_t width = ROW_TOTALS + 2 * (int64_t)phases;
    if (phases != one->phases)
        return CORE_BAD_ARGUMENT;
    bool is_new = !one->rows;
    if (!reserve(run, one, values, rows, width))
        return CORE_NO_MEMORY;
    for (int64_t at = 0; at < rows; at++, values += width) {
        if (!is_in_range(values, phases))
            counts->wrong++;
        else if (values[ROW_NUMBER] <= one->row_number)
            counts->repeated++;
        else {
            is_new = false;
            fold_row(run, one, values);
            counts->folded++;
        }
    }
    if (is_new) {
        free(one->first);
        one->first = NULL;
    }
    return 0;
}

int core_fold_blocks(core_run *run, const int32_t *attempts, const int64_t *rows, int64_t blocks, const int64_t *values,
                     int64_t size, core_counts *counts)
{
    if (!run || blocks < 0 || size < 0 || (blocks && (!attempts || !rows)) || (size && !values) || !counts)
        return CORE_BAD_ARGUMENT;
    int64_t left = size;
    for (int64_t i = 0; i < blocks; i++) {
        if (attempts[i] < 0 || attempts[i] >= run->count || rows[i] < 0)
            return CORE_BAD_ARGUMENT;
        int64_t width = ROW_TOTALS + 2 * (int64_t)run->attempts[attempts[i]].phases;
        if (rows[i] > left / width)
            return CORE_BAD_ARGUMENT;
        left -= rows[i] * width;
    }
    if (left)
        return CORE_BAD_ARGUMENT;
    for (int64_t i = 0; i < blocks; i++) {
        int32_t phases = run->attempts[attempts[i]].phases;
        int found = core_fold(run, attempts[i], values, rows[i], phases, counts);
        if (found < 0)
            return found;
        values += rows[i] * (ROW_TOTALS + 2 * (int64_t)phases);
    }
    return 0;
}
