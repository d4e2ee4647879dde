/* Which steps of a group's ranks are compared: those up to the next step that all ranks have reached.
 *
 * Mostly a row is one step. Where some have rows of several, what all did up to the next step that ends a row of each is
 * compared as one sum; ranks that began later than the others, or have a gap there, take no part in it. */
#include <stdlib.h>

#include "internal.h"

static int64_t reached(const attempt *one)
{
    return one->is_taken ? one->taken.last : one->queued ? one->waiting[one->head].last : -1;
}

static bool has_rows(const attempt *one)
{
    return one->is_taken || one->queued;
}

/* Whether its group cannot go on without further rows of this rank. */
bool is_lacking(const core_run *run, const attempt *one)
{
    if (one->is_ended || one->is_absent)
        return false;
    if (one->first || !has_rows(one))
        return true;
    return !one->queued && one->taken.last < run->groups[one->group].target;
}

bool group_reserve(core_run *run, attempt *one, int64_t rows)
{
    if (run->groups[one->group].count < 2)
        return true;
    int64_t wanted = one->queued + rows;
    wanted = wanted > CORE_PENDING_MAX ? CORE_PENDING_MAX : wanted;
    int32_t room = 4;
    while (room < wanted)
        room *= 2;
    /* What waited for the first step, or for a rank that was far behind, is given back. */
    if (wanted <= one->room && one->room <= 2 * room)
        return true;
    span *waiting = malloc((size_t)room * sizeof(*waiting));
    if (!waiting)
        return false;
    for (int32_t i = 0; i < one->queued; i++)
        waiting[i] = one->waiting[(one->head + i) & (one->room - 1)];
    free(one->waiting);
    one->waiting = waiting;
    one->room = room;
    one->head = 0;
    return true;
}

static void pop_into_taken(attempt *one)
{
    const span *next = &one->waiting[one->head];
    if (one->is_taken) {
        one->taken.last = next->last;
        one->taken.communication += next->communication;
        one->taken.own += next->own;
        one->taken.within += next->within;
        one->taken.length += next->length;
        one->taken.beginning |= next->beginning;
        one->taken.counted &= next->counted;
    } else {
        one->taken = *next;
        one->is_taken = true;
    }
    one->head = (one->head + 1) & (one->room - 1);
    one->queued--;
}

static void recount(core_run *run, group *own)
{
    own->lacking = 0;
    for (int32_t i = 0; i < own->count; i++)
        own->lacking += is_lacking(run, &run->attempts[own->members[i]]);
}

static void sum_up_to(attempt *one, int64_t target)
{
    while (one->queued && one->waiting[one->head].first <= target && (!one->is_taken || one->taken.last < target))
        pop_into_taken(one);
}

static int64_t lowest_reached(const core_run *run, const group *own)
{
    int64_t lowest = -1;
    for (int32_t i = 0; i < own->count; i++) {
        const attempt *one = &run->attempts[own->members[i]];
        if (has_rows(one) && !one->first && (lowest < 0 || reached(one) < lowest))
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
            if (!one->is_taken)
                continue;
            if (one->taken.last < target && !one->queued && !one->is_ended && !one->is_absent)
                is_whole = false;
            if (one->taken.last > target) {
                target = one->taken.last;
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
        if (one->is_taken && one->taken.last == own->target && one->taken.first < first)
            first = one->taken.first;
    }
    for (int32_t i = 0; i < own->count; i++) {
        attempt *one = &run->attempts[own->members[i]];
        if (one->is_taken && one->taken.last == own->target && one->taken.first == first)
            run->compared[count++] = (compared){.of = one, .step = &one->taken};
    }
    if (count > 1)
        compare_members(run, own, count);
    for (int32_t i = 0; i < own->count; i++) {
        attempt *one = &run->attempts[own->members[i]];
        if (one->is_taken && one->taken.last <= own->target)
            one->is_taken = false;
        /* Of one that was given up while its first step was held back. */
        while (one->queued && one->waiting[one->head].last <= own->target) {
            one->head = (one->head + 1) & (one->room - 1);
            one->queued--;
            one->late_rows++;
        }
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
            one->is_absent |= is_lacking(run, one);
        }
        recount(run, own);
        group_settle(run, own);
    }
}

static int64_t newest(const attempt *one)
{
    return one->queued ? one->waiting[(one->head + one->queued - 1) & (one->room - 1)].last : reached(one);
}

/* Let a folded row wait for those of the others of its group; `is_new` if its rank has made no later step before. */
void group_wait(core_run *run, attempt *one, const span *step, bool is_new)
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
        one->late_rows += is_new;
    else
        one->waiting[(one->head + one->queued++) & (one->room - 1)] = *step;
    own->lacking += is_lacking(run, one) - was_lacking;
    group_settle(run, own);
}
