/* One step of a group's ranks beside each other: communication that all paid, and waiting for the slowest. */
#include "internal.h"

/* Blame ranks for waiting; a tie is shared, the rest of the division goes to the first, so the sum is exact. */
void blame(wide waited_ns, compared *members, int32_t count, bool is_in_group)
{
    int32_t last = 0, at = 0;
    for (int32_t i = 0; i < count; i++)
        last += members[i].is_last;
    if (!last)
        return;
    wide each = waited_ns / last, rest = waited_ns % last;
    for (int32_t i = 0; i < count; i++)
        if (members[i].is_last) {
            attempt *one = members[i].of;
            add_bounded(is_in_group ? &one->sums.caused_in_group_ns : &one->sums.caused_ns, each + (at++ < rest));
        }
}

/* Of communication that is moved, the part that lies in the bound. */
int64_t within(const span *step, int64_t ns)
{
    return step->within == step->communication ? ns : scaled(ns, step->within, step->communication);
}

/* Charge what is moved out of the communication of a member's step, in its bound. */
void move(const core_run *run, attempt *one, int64_t straggler_ns, int64_t bubble_ns)
{
    one->sums.straggler_ns += straggler_ns;
    one->sums.bubble_ns += bubble_ns;
    if (run->watcher.moved && (straggler_ns || bubble_ns)) {
        const span *step = waiting_at(one, 0);
        core_watched_move told = {(int32_t)(one - run->attempts), step->first, step->last, straggler_ns, bubble_ns};
        run->watcher.moved(run->watcher.context, &told);
    }
}

static void compare_group(core_run *run, int32_t count, int64_t steps)
{
    compared *members = run->compared;
    int64_t least = members[0].step->communication;
    int32_t last = 0;
    wide waited = 0;
    for (int32_t i = 1; i < count; i++)
        least = members[i].step->communication < least ? members[i].step->communication : least;
    for (int32_t i = 0; i < count; i++) {
        int64_t waits = members[i].step->communication - least;
        members[i].is_last = !waits;
        last += !waits;
        waits = within(members[i].step, waits);
        move(run, members[i].of, waits, 0);
        waited += waits;
    }
    blame(waited, members, count, false);
    blame(waited, members, count, true);
    for (int32_t i = 0; i < count && last < count; i++)
        members[i].of->sums.last_steps += members[i].is_last ? steps : 0;
}

void compare_members(core_run *run, group *own, int32_t count)
{
    compared *members = run->compared;
    bool is_beginning = false, is_single = true, is_counted = true;
    for (int32_t i = 0; i < count; i++) {
        is_beginning |= members[i].of->is_beginning;
        is_single &= members[i].step->first == members[i].step->last;
        is_counted &= members[i].step->is_counted;
    }
    /* In how many steps of a sum a rank was the last is not known: they do not count for that. Nor does a step that is not in the
     * bounds of all. */
    is_single &= is_counted;
    int64_t step = members[0].step->last;
    if (own->stages)
        compare_pipeline(run, own, count, is_single);
    else
        compare_group(run, count, is_single);
    for (int32_t i = 0; i < count; i++) {
        members[i].of->sums.matched_ns += members[i].step->length;
        members[i].of->sums.compared_steps += is_single;
        if (is_counted && !is_beginning) {
            members[i].of->sums.compared_own_ns += members[i].step->own;
            members[i].of->sums.compared_count += members[i].step->last - members[i].step->first + 1;
        }
    }
    if (!is_beginning)
        onsets_note(run, members, count, step);
}
