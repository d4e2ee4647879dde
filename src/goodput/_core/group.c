/* Which steps of a group's ranks are compared: those up to the next step that all ranks have reached.
 *
 * Mostly a row is one step. Where some have rows of several, what all did up to the next step that ends a row of each is
 * compared as one sum; ranks that began later than the others, or have a gap there, take no part in it. */
#include <stdlib.h>

#include "internal.h"

/* What waits at a place, 0 for the oldest. */
span *waiting_at(const attempt *one, int32_t place)
{
    int32_t at = one->head + place;
    return &one->waiting[at < one->room ? at : at - one->room];
}

static int64_t reached(const attempt *one)
{
    return one->queued ? waiting_at(one, 0)->last : -1;
}

static int64_t newest(const attempt *one)
{
    return one->queued ? waiting_at(one, one->queued - 1)->last : -1;
}

/* Whether its group cannot go on without further rows of this rank. */
bool is_lacking(const core_run *run, const attempt *one)
{
    if (one->is_ended || one->is_absent)
        return false;
    if (one->first || !one->queued)
        return true;
    return one->is_summed && one->queued == 1 && reached(one) < run->groups[one->group].target;
}

void free_waiting(attempt *one)
{
    free(one->waiting);
    one->waiting = NULL;
    one->room = one->head = 0;
}

bool group_reserve(core_run *run, attempt *one, int64_t rows)
{
    int64_t wanted = one->queued + rows;
    wanted = wanted > CORE_PENDING_MAX ? CORE_PENDING_MAX : wanted;
    /* What waited for the first step, or for a rank that was far behind, is given back. */
    if (run->groups[one->group].count < 2 || (wanted <= one->room && one->room <= 2 * wanted + 8))
        return true;
    int32_t room = (int32_t)(wanted + wanted / 4);
    span *waiting = malloc((size_t)room * sizeof(*waiting));
    if (!waiting)
        return false;
    for (int32_t i = 0; i < one->queued; i++)
        waiting[i] = *waiting_at(one, i);
    free_waiting(one);
    one->waiting = waiting;
    one->room = room;
    return true;
}

/* Take the oldest away. */
static void drop(attempt *one)
{
    one->head = one->head + 1 < one->room ? one->head + 1 : 0;
    one->queued--;
    one->is_summed = one->is_beginning = false;
}

/* Add the oldest to the one after it. */
static void merge(attempt *one)
{
    const span *from = waiting_at(one, 0);
    span *into = waiting_at(one, 1);
    uint8_t is_beginning = one->is_beginning;
    into->first = from->first;
    into->communication += from->communication;
    into->own += from->own;
    into->within += from->within;
    into->length += from->length;
    into->is_counted &= from->is_counted;
    drop(one);
    one->is_summed = true;
    one->is_beginning = is_beginning;
}

/* How many members the group waits for. */
void recount(core_run *run, group *own)
{
    own->lacking = 0;
    for (int32_t i = 0; i < own->count; i++)
        own->lacking += is_lacking(run, &run->attempts[own->members[i]]);
}

/* Sum what waits up to a step, or the first one that ends beyond it. */
static void sum_up_to(attempt *one, int64_t target)
{
    if (one->queued && waiting_at(one, 0)->first <= target)
        one->is_summed = true;
    while (one->is_summed && one->queued > 1 && reached(one) < target && waiting_at(one, 1)->first <= target)
        merge(one);
}

static int64_t lowest_reached(const core_run *run, const group *own)
{
    int64_t lowest = -1;
    for (int32_t i = 0; i < own->count; i++) {
        const attempt *one = &run->attempts[own->members[i]];
        if (one->queued && !one->first && (lowest < 0 || reached(one) < lowest))
            lowest = reached(one);
    }
    return lowest;
}

/* Sum each member's rows up to the next step that all reach; false if one lacks rows for that. */
static bool find_boundary(core_run *run, group *own)
{
    int64_t target = own->target < 0 ? lowest_reached(run, own) : own->target;
    bool has_grown = target >= 0, is_whole = has_grown;
    while (has_grown && is_whole) {
        has_grown = false;
        for (int32_t i = 0; i < own->count; i++) {
            attempt *one = &run->attempts[own->members[i]];
            if (one->first)
                continue;
            sum_up_to(one, target);
            if (!one->is_summed)
                continue;
            if (reached(one) < target && one->queued == 1 && !one->is_ended && !one->is_absent)
                is_whole = false;
            if (reached(one) > target) {
                target = reached(one);
                has_grown = true;
            }
        }
    }
    own->target = target;
    return is_whole;
}

/* Compare those that made the same steps up to the boundary, and go on after it. */
static void compare_boundary(core_run *run, group *own)
{
    int64_t first = INT64_MAX;
    int32_t count = 0;
    for (int32_t i = 0; i < own->count; i++) {
        const attempt *one = &run->attempts[own->members[i]];
        if (one->is_summed && reached(one) == own->target && waiting_at(one, 0)->first < first)
            first = waiting_at(one, 0)->first;
    }
    for (int32_t i = 0; i < own->count; i++) {
        attempt *one = &run->attempts[own->members[i]];
        if (one->is_summed && reached(one) == own->target && waiting_at(one, 0)->first == first)
            run->compared[count++] = (compared){.of = one, .step = waiting_at(one, 0)};
    }
    if (count > 1)
        compare_members(run, own, count);
    for (int32_t i = 0; i < own->count; i++) {
        attempt *one = &run->attempts[own->members[i]];
        if (one->is_summed && reached(one) <= own->target)
            drop(one);
        /* Of one that was given up while its first step was held back. */
        while (one->queued && reached(one) <= own->target) {
            drop(one);
            one->sums.late_rows++;
        }
        if (!one->queued && one != run->folding)
            free_waiting(one);
    }
    own->settled = own->target;
    own->target = -1;
    recount(run, own);
}

/* Compare all steps that no rank lacks. */
void group_settle(core_run *run, group *own)
{
    while (!own->lacking && find_boundary(run, own))
        compare_boundary(run, own);
    if (own->target >= 0)
        recount(run, own);
}

/* Go on without those that hold the group up, since this rank has as many rows waiting as may be. */
static void give_up_waiting(core_run *run, group *own, attempt *full)
{
    fix_first(run, full);
    for (int32_t tries = 0; tries <= own->count && full->queued == CORE_PENDING_MAX; tries++) {
        for (int32_t i = 0; i < own->count; i++) {
            attempt *one = &run->attempts[own->members[i]];
            one->is_absent = one->is_absent || is_lacking(run, one);
        }
        recount(run, own);
        group_settle(run, own);
    }
}

/* Let a folded row, maybe the first of its attempt, wait for those of the others of its group; `is_new` if its rank has made no
 * later step before. */
void group_wait(core_run *run, attempt *one, const span *step, bool is_beginning, bool is_new)
{
    group *own = &run->groups[one->group];
    if (own->count < 2) {
        own->settled = step->last > own->settled ? step->last : own->settled;
        return;
    }
    if (one->queued == CORE_PENDING_MAX)
        give_up_waiting(run, own, one);
    bool was_lacking = is_lacking(run, one);
    one->is_absent = false;
    if (step->first <= own->settled || step->first <= newest(one) || one->queued == CORE_PENDING_MAX)
        one->sums.late_rows += is_new;
    else {
        *waiting_at(one, one->queued++) = *step;
        one->is_beginning = one->is_beginning || is_beginning;
    }
    own->lacking += is_lacking(run, one) - was_lacking;
    group_settle(run, own);
}
