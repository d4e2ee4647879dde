/* The steps in which a rank was slow.
 *
 * In each step of a group a rank is hit if its own time exceeds that of the faster half (the lower median) by HIT_RATIO_MIN and is
 * among the slowest eighth. So that several slow ranks do not hide each other it is also beside them if it is among the slowest
 * half, and further from the lower median than SPREADS_MIN times the faster half's own spread, or as far from the fastest three
 * eighths. While nothing distinguishes a rank, it is among the k slowest of n in at most k / n of the steps, whatever the
 * distribution of times. For each a cumulative sum (Page, "Continuous inspection schemes", 1954) of log-likelihood ratios, against
 * a rank that is slow in half of the remaining steps, for `beside` in three quarters of them, must reach ln(FALSE_ALARM_STEPS); by
 * Lorden's bound ("Procedures for reacting to a change in distribution", 1971) each raises at most one false alarm in
 * FALSE_ALARM_STEPS independent steps of a rank. The mirrored sum ends a stretch. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define HIT_RATIO_MIN 1.05
#define SPREADS_MIN 2
#define LOW_SPREADS_MIN 3
#define LOW_RANKS_MIN 3
/* A rank that stands out alone is taken for one of a quarter of its group, since noise that lasts makes it stand out again. */
#define BESIDE_SHARE_MIN 4
#define SLOW_SHARE 0.5
#define SLOW_SHARE_BESIDE 0.75
#define FALSE_ALARM_STEPS 10000000.0

/* What is common to a group's ranks in one step. */
typedef struct {
    double least_hit, least_beside; /* own times from these on are hits */
    bool has_hits, has_beside;
    double chance, chance_beside;
} borders;

static double log_ratio(bool is_hit, double chance, double share)
{
    double slow = share + (1 - share) * chance;
    return is_hit ? log(slow / chance) : log((1 - slow) / (1 - chance));
}

static int32_t count_from(const int64_t *ordered, int32_t count, double least)
{
    int32_t found = 0;
    while (found < count && (double)ordered[count - 1 - found] >= least)
        found++;
    return found;
}

static borders find_borders(const int64_t *ordered, int32_t count)
{
    borders found = {0};
    int32_t few = count / 8 > 1 ? count / 8 : 1, half = count / 2;
    int32_t eighths = (3 * count + 7) / 8 > LOW_RANKS_MIN ? (3 * count + 7) / 8 : LOW_RANKS_MIN;
    int32_t place = eighths - 1 < (count - 1) / 2 ? eighths - 1 : (count - 1) / 2;
    int64_t middle = ordered[(count - 1) / 2], low = ordered[place], fastest = ordered[0];
    double least = HIT_RATIO_MIN * (double)middle;
    double apart = (double)(middle + SPREADS_MIN * (middle - fastest));
    apart = apart > least ? apart : least;
    if (low < middle) {
        double above_low = (double)(low + LOW_SPREADS_MIN * (low - fastest)), near_low = HIT_RATIO_MIN * (double)low;
        above_low = above_low > near_low ? above_low : near_low;
        apart = above_low < apart ? above_low : apart;
    }
    double slowest = (double)ordered[count - few], slower_half = (double)ordered[count - half];
    found.least_hit = least > slowest ? least : slowest;
    found.least_beside = apart > slower_half ? apart : slower_half;
    int32_t hits = count_from(ordered, count, found.least_hit), beside = count_from(ordered, count, found.least_beside);
    /* A tie at the border that makes them more than may be tells nothing. */
    found.has_hits = middle > 0 && hits <= few;
    found.has_beside = middle > 0 && beside <= half;
    found.chance = (double)few / count;
    beside = found.has_beside ? beside : 0;
    int32_t among = beside > count / BESIDE_SHARE_MIN ? beside : count / BESIDE_SHARE_MIN;
    /* In a group where only the slowest one may be slow nobody is beside others. */
    found.chance_beside = half <= few ? 1.0 : (double)among / count;
    return found;
}

static void begin(attempt *one, int64_t step)
{
    if (one->stretch_count == CORE_STRETCHES_MAX) /* The newest takes the place of the one before. */
        one->stretch_count--;
    one->stretches[one->stretch_count++] = (core_stretch){step, -1};
    one->is_slow = true;
    one->onset.sum = one->onset.sum_beside = 0;
}

static void note(attempt *one, int64_t step, bool is_hit, bool is_beside, const borders *by)
{
    onset *own = &one->onset;
    if (by->chance >= 1)
        return;
    if (own->first < 0)
        own->first = step;
    if (own->sum <= 0) {
        own->sum = 0;
        own->began = step;
    }
    double alarm = log(FALSE_ALARM_STEPS);
    if (one->is_slow) {
        bool is_slow = is_hit || is_beside;
        /* A hit beside others tells as much as its own chance. */
        own->sum -= log_ratio(is_slow, is_slow && !is_hit ? by->chance_beside : by->chance, SLOW_SHARE);
        if (own->sum >= alarm) {
            one->stretches[one->stretch_count - 1].last = own->began - 1;
            one->is_slow = false;
            own->sum = 0;
        }
        return;
    }
    own->sum += log_ratio(is_hit, by->chance, SLOW_SHARE);
    if (by->chance_beside < 1) {
        if (own->sum_beside <= 0) {
            own->sum_beside = 0;
            own->began_beside = step;
        }
        own->sum_beside += log_ratio(is_beside, by->chance_beside, SLOW_SHARE_BESIDE);
    }
    if (own->sum < alarm && own->sum_beside < alarm)
        return;
    if (!one->stretches && !(one->stretches = calloc(CORE_STRETCHES_MAX, sizeof(*one->stretches))))
        return; /* Without memory it is tried again in the next step. */
    begin(one, own->sum >= alarm ? own->began : own->began_beside);
}

static void note_peers(core_run *run, compared *members, int32_t count, int64_t step)
{
    if (count < 2)
        return; /* The chance to be the slowest of one is 1. */
    for (int32_t i = 0; i < count; i++)
        run->sorted[i] = members[i].step->own;
    qsort(run->sorted, (size_t)count, sizeof(int64_t), ascending);
    borders by = find_borders(run->sorted, count);
    for (int32_t i = 0; i < count; i++) {
        double own = (double)members[i].step->own;
        note(members[i].of, step, by.has_hits && own >= by.least_hit, by.has_beside && own >= by.least_beside, &by);
    }
}

/* Compare own times within the group, within each stage of a pipeline. */
void onsets_note(core_run *run, compared *members, int32_t count, int64_t step)
{
    if (!run->groups[members[0].of->group].stages) {
        note_peers(run, members, count, step);
        return;
    }
    qsort(members, (size_t)count, sizeof(*members), by_unit);
    for (int32_t from = 0, end = 0; from < count; from = end) {
        for (end = from; end < count && members[end].of->stage == members[from].of->stage; end++)
            ;
        note_peers(run, members + from, end - from, step);
    }
}
