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
        if (place >= 0 && states[state] > own->past->planned_ns[place])
            own->past->planned_ns[place] = states[state];
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

/* The row's time by state since the row before, whose totals are `before`; what contradicts it is cut to fit. */
static void divide_time(const layout *by, const int64_t *before, const int64_t *values, int64_t spent_ns, row *into)
{
    wide gap[ROW_STATES] = {0}, inside[ROW_STATES] = {0}, known = 0;
    const int64_t *totals = values + ROW_TOTALS, *outside = totals + by->phases;
    for (int i = 0; i < by->phases; i++) {
        int64_t beyond = outside[i] - before[by->phases + i];
        gap[by->states[i]] += beyond;
        inside[by->states[i]] += (wide)totals[i] - before[i] - beyond;
    }
    for (int i = 0; i < ROW_STATES; i++) {
        into->is_cut |= gap[i] < 0 || inside[i] < 0;
        known += gap[i] + inside[i];
    }
    into->is_cut |= known != spent_ns;
    if (into->is_cut)
        fit(gap, inside, spent_ns);
    for (int i = 0; i < ROW_STATES; i++) {
        into->gap[i] = (int64_t)gap[i];
        into->inside[i] = (int64_t)inside[i];
    }
}

static void divide_row(const layout *by, const attempt *one, const int64_t *before, const int64_t *values, row *into)
{
    int64_t spent = values[ROW_END] - one->sums.end_ns;
    into->is_cut = spent < 0;
    into->count = values[ROW_NUMBER] - one->sums.number;
    into->step = values[ROW_STEP];
    into->end_ns = spent > 0 ? values[ROW_END] : one->sums.end_ns;
    divide_time(by, before, values, spent > 0 ? spent : 0, into);
    into->length = sum_of(into->inside, ROW_STATES);
    into->part = overlap(one, into->end_ns - into->length, into->end_ns);
    bool is_begun = into->end_ns > one->from_ns || (!into->length && into->end_ns == one->from_ns);
    into->is_counted = into->end_ns <= one->to_ns && is_begun;
    int64_t limit = !one->limits ? INT64_MAX : one->limits->again < one->limits->limit ? one->limits->again : one->limits->limit;
    int64_t beyond = into->step > limit ? into->step - limit : 0;
    into->kept = beyond < into->count ? into->count - beyond : 0;
}

/* Charge the steps of a row that are beyond the limit; what is left of it are those before. */
static void lose(limits *by, row *own)
{
    int64_t lost = own->is_counted ? own->count - own->kept : 0;
    int64_t ns = own->part - scaled(own->part, own->kept, own->count);
    by->lost_steps += lost;
    by->lost_ns += ns;
    for (int64_t i = 0; i < by->count && own->step <= by->again; i++)
        if (by->losses[i].point < own->step) {
            by->losses[i].steps += lost;
            by->losses[i].ns += ns;
            break;
        }
    share(own->inside, own->part - ns, own->length);
}

/* Take the row's cumulative values as those that the next one is compared with. */
static void take_totals(attempt *one, int32_t phases, int64_t *before, const int64_t *values, const row *own, bool is_usual)
{
    const int64_t *totals = values + ROW_TOTALS, *outside = totals + phases;
    int64_t *before_outside = before + phases, *usual = before_outside + phases;
    for (int i = 0; i < phases; i++) {
        if (is_usual)
            usual[i] += totals[i] - before[i] - (outside[i] - before_outside[i]);
        before[i] = totals[i];
        before_outside[i] = outside[i];
    }
    one->usual_steps += is_usual ? own->count : 0;
    one->sums.rows++;
    one->sums.steps += own->is_counted ? own->count : 0;
    one->sums.number = values[ROW_NUMBER];
    one->sums.end_ns = own->end_ns;
    one->sums.top_step = own->step > one->sums.top_step ? own->step : one->sums.top_step;
}

static bool is_whole(const row *own)
{
    return own->length ? own->part == own->length : own->is_counted;
}

static void count_samples(sample_sums *sums, const int64_t *values, const row *own, bool is_first)
{
    int64_t samples = values[ROW_SAMPLES] - sums->samples_total, device_ns = values[ROW_DEVICE] - sums->device_total_ns;
    samples = samples > 0 ? samples : 0;
    device_ns = device_ns < 0 ? 0 : device_ns > own->length ? own->length : device_ns;
    if (samples && (own->count > 1 || !is_first)) /* A first step is no measure of the throughput. */
        peak_add(&sums->peak, own->count, (double)samples, (double)own->length);
    add_bounded(&sums->samples, is_whole(own) ? samples : scaled(samples, own->part, own->length));
    int64_t kept = scaled(samples, own->kept, own->count);
    add_bounded(&sums->kept_samples, is_whole(own) ? kept : scaled(kept, own->part, own->length));
    sums->device_ns += is_whole(own) ? device_ns : scaled(device_ns, own->part, own->length);
    sums->samples_total = values[ROW_SAMPLES];
    sums->device_total_ns = values[ROW_DEVICE];
}

static void count_work(attempt *one, const row *own)
{
    int64_t work = own->kept > VALUE_MAX / WORK_PARTS ? VALUE_MAX : own->kept * WORK_PARTS;
    add_bounded(&one->sums.work, is_whole(own) ? work : scaled(work, own->part, own->length));
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
    values_add(&run->layouts[one->layout], one, INSIDE, first->inside);
    if (one->is_beginning) {
        span *step = waiting_at(one, 0);
        step->communication = communication;
        step->within = first->inside[COMMUNICATION];
        step->own = own;
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

static void settle_gap(const layout *by, attempt *one, row *own, int64_t threshold_ns)
{
    /* Compute outside steps belongs to no step. */
    own->gap[UNATTRIBUTED] += own->gap[PRODUCTIVE];
    own->gap[PRODUCTIVE] = 0;
    if (!one->sums.rows)
        settle_beginning(own->gap, own->count == 1);
    else if (own->count == 1)
        stall_if_long(own->gap, threshold_ns);
    int64_t length = sum_of(own->gap, ROW_STATES), began_ns = own->end_ns - own->length;
    share(own->gap, overlap(one, began_ns - length, began_ns), length);
    values_add(by, one, OUTSIDE, own->gap);
}

/* The first step waits for those that it is compared with. */
static void hold_first(attempt *one, const row *own, int64_t threshold_ns, span *step)
{
    *step = (span){own->step, own->step, own->inside[COMMUNICATION], own_ns(own->inside), 0, own->part, own->is_counted};
    memcpy(one->first->inside, own->inside, sizeof(own->inside));
    one->first->threshold_ns = threshold_ns;
    one->first->step = own->step;
    one->first->part = own->part;
}

/* Charge the time in steps of a row, of which `step` is what its group compares; returns whether it is a stall. */
static bool settle_step(core_run *run, attempt *one, row *own, int64_t threshold_ns, span *step)
{
    int64_t stalled_ns = own->inside[STALL];
    if (!one->sums.rows) { /* A first row of several steps, or a lost one, is not held back. */
        free(one->first);
        one->first = NULL;
    }
    if (own->count == 1 && one->sums.rows) {
        note_other(one->first, own);
        history_add(&one->past, own->length, run->least_threshold_ns);
    }
    if (own->count == 1)
        stall_if_long(own->inside, threshold_ns);
    bool is_stall = own->inside[STALL] > stalled_ns;
    *step = (span){own->step - own->count + 1, own->step, own->inside[COMMUNICATION], own_ns(own->inside), 0, own->part, own->is_counted};
    if (own->kept < own->count)
        lose(one->limits, own);
    else
        share(own->inside, own->part, own->length);
    step->within = own->inside[COMMUNICATION];
    values_add(&run->layouts[one->layout], one, INSIDE, own->inside);
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

/* The attempt after it that goes on with what is known before a row that ends then; NULL for none. */
static attempt *heir(const core_run *run, const attempt *one, int64_t end_ns)
{
    attempt *next = one->next >= 0 ? &run->attempts[one->next] : NULL;
    return next && next->before == one - run->attempts && end_ns > next->start_ns ? next : NULL;
}

/* Whether the attempt after it has begun without a row that ends then. */
static bool is_too_late(const core_run *run, const attempt *one, int64_t end_ns)
{
    const attempt *next = one->next >= 0 ? &run->attempts[one->next] : NULL;
    return next && next->before < 0 && end_ns <= next->start_ns;
}

static void inherit(const core_run *run, attempt *one)
{
    history_inherit(&one->past, known_of(run, one));
    one->before = -1;
}

static void fold_row(core_run *run, attempt *one, int64_t *before, const int64_t *values)
{
    const layout *by = &run->layouts[one->layout];
    history *past = &one->past;
    attempt *next = heir(run, one, values[ROW_END]);
    one->sums.late_rows += is_too_late(run, one, values[ROW_END]);
    if (one->before >= 0)
        inherit(run, one);
    if (next)
        inherit(run, next);
    row own;
    span step;
    divide_row(by, one, before, values, &own);
    int64_t spent = own.end_ns - one->sums.end_ns;
    /* No wait is a stall that is not longer than the least, so mostly the threshold need not be known. */
    bool is_long = spent > run->least_threshold_ns || spent > PLANNED_LEAST_NS;
    int64_t threshold = is_long ? history_threshold_ns(past, run->least_threshold_ns) : run->least_threshold_ns;
    if (own.count == 1 && is_long) {
        limit_planned(planned_of(past), threshold, own.gap);
        limit_planned(planned_of(past), threshold, own.inside);
    }
    if (spent > PLANNED_LEAST_NS / TIMES) { /* A shorter phase raises no limit. */
        note_planned(past, own.gap);
        note_planned(past, own.inside);
    }
    bool is_first = !one->sums.rows, is_lost = own.kept < own.count, is_single_first = is_first && own.count == 1;
    bool is_held = is_single_first && !is_lost, is_stall = false;
    bool is_new = own.step > one->sums.top_step;
    one->sums.compute_ns += in_bound(one, &own, PRODUCTIVE);
    one->sums.saved_ns += in_bound(one, &own, CHECKPOINT);
    one->sums.clamped += own.is_cut && own.is_counted;
    settle_gap(by, one, &own, threshold);
    if (is_held)
        hold_first(one, &own, is_long ? threshold : VALUE_MAX, &step);
    else
        is_stall = settle_step(run, one, &own, threshold, &step);
    if (one->samples)
        count_samples(one->samples, values, &own, is_first);
    count_work(one, &own);
    take_totals(one, by->phases, before, values, &own, !is_single_first && !own.is_cut && !is_stall && !is_lost && is_whole(&own));
    if (run->watcher.row)
        tell(run, one, &own, is_held);
    /* Also of a step outside the bound, so that those of others are compared with it. */
    if (!is_lost)
        group_wait(run, one, &step, is_first, is_new);
    if (one->first && one->first->others == CORE_FIRST_OTHERS) {
        fix_first(run, one);
        group_settle(run, &run->groups[one->group]);
    }
}

static bool is_in_range(const int64_t *values, int64_t width)
{
    uint64_t all = 0;
    for (int64_t i = 0; i < width; i++)
        all |= (uint64_t)values[i];
    return all <= VALUE_MAX && values[ROW_NUMBER] > 0;
}

static bool reserve_zeroed(void *pointer, size_t size)
{
    void *own;
    memcpy(&own, pointer, sizeof(own));
    if (!own)
        own = calloc(1, size);
    memcpy(pointer, &own, sizeof(own));
    return own != NULL;
}

/* Make room in the histories of an attempt and of the one after it for rows up to `end_ns`. */
static bool reserve_history(core_run *run, attempt *one, int64_t end_ns, int64_t long_rows)
{
    attempt *next = heir(run, one, end_ns);
    const history *known = known_of(run, one);
    int64_t inherited = known == &one->past ? 0 : known->kept;
    bool is_needed = long_rows || (known != &one->past && known->past);
    return (!is_needed || history_reserve(&one->past, inherited + long_rows)) &&
           (!next || !(is_needed || known->past) || history_reserve(&next->past, known->kept + long_rows));
}

/* Make room for all that these rows may need, so that folding them cannot fail. */
static bool reserve(core_run *run, attempt *one, const int64_t *values, int64_t rows, int64_t width)
{
    int64_t end_ns = one->sums.end_ns, number = one->sums.number, long_rows = 0, seen[ROW_TOTALS + 2 * CORE_PHASES_MAX];
    bool is_long = false;
    memset(seen, 0, (size_t)width * sizeof(*seen));
    for (int64_t at = 0; at < rows; at++, values += width) {
        if (values[ROW_NUMBER] <= number || !is_in_range(values, width))
            continue;
        int64_t spent = values[ROW_END] - end_ns;
        long_rows += spent > run->least_threshold_ns / TIMES || spent > PLANNED_LEAST_NS / TIMES;
        is_long |= spent > run->least_threshold_ns || spent > PLANNED_LEAST_NS;
        number = values[ROW_NUMBER];
        end_ns = spent > 0 ? values[ROW_END] : end_ns;
        for (int64_t i = 0; i < width; i++)
            seen[i] |= values[i];
    }
    if (number == one->sums.number)
        return true;
    return reserve_history(run, one, end_ns, long_rows) &&
           (one->sums.rows || reserve_zeroed(&one->first, sizeof(*one->first))) &&
           ((!seen[ROW_SAMPLES] && !seen[ROW_DEVICE]) || reserve_zeroed(&one->samples, sizeof(*one->samples))) &&
           values_reserve(&run->layouts[one->layout], one, seen, is_long) && group_reserve(run, one, rows);
}

int fold_rows(core_run *run, attempt *one, const int64_t *values, int64_t rows, core_counts *counts)
{
    const layout *by = &run->layouts[one->layout];
    int64_t width = ROW_TOTALS + 2 * (int64_t)by->phases, before[PHASE_COLUMNS * CORE_PHASES_MAX];
    bool is_new = !one->sums.rows;
    if (!reserve(run, one, values, rows, width)) {
        if (is_new) {
            free(one->first);
            one->first = NULL;
        }
        return CORE_NO_MEMORY;
    }
    run->folding = one;
    totals_get(by, one, before);
    for (int64_t at = 0; at < rows; at++, values += width) {
        if (!is_in_range(values, width))
            counts->wrong++;
        else if (values[ROW_NUMBER] <= one->sums.number)
            counts->repeated++;
        else {
            fold_row(run, one, before, values);
            counts->folded++;
        }
    }
    totals_put(by, one, before);
    run->folding = NULL;
    if (!one->queued)
        free_waiting(one);
    return 0;
}

int core_fold(core_run *run, const int32_t *attempts, const int64_t *rows, int64_t blocks, const int64_t *values, int64_t size,
              core_counts *counts)
{
    if (!run || blocks < 0 || size < 0 || (blocks && (!attempts || !rows)) || (size && !values) || !counts)
        return CORE_BAD_ARGUMENT;
    int64_t left = size;
    for (int64_t i = 0; i < blocks; i++) {
        const attempt *one = attempt_at(run, attempts[i]);
        int64_t width = one ? ROW_TOTALS + 2 * (int64_t)run->layouts[one->layout].phases : 0;
        if (!one || rows[i] < 0 || rows[i] > left / width)
            return CORE_BAD_ARGUMENT;
        left -= rows[i] * width;
    }
    if (left)
        return CORE_BAD_ARGUMENT;
    for (int64_t i = 0; i < blocks; i++) {
        attempt *one = &run->attempts[attempts[i]];
        int found = fold_rows(run, one, values, rows[i], counts);
        if (found < 0)
            return found;
        values += rows[i] * (ROW_TOTALS + 2 * (int64_t)run->layouts[one->layout].phases);
    }
    return 0;
}
