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
            add_bounded(is_in_group ? &one->caused_in_group_ns : &one->caused_ns, each + (at++ < rest));
        }
}

/* Of communication that is moved, the part that lies in the bound. */
int64_t within(const span *step, int64_t ns)
{
    return step->within == step->communication ? ns : scaled(ns, step->within, step->communication);
}

static void compare_group(compared *members, int32_t count, int64_t steps)
{
    int64_t least = members[0].step->communication;
    int32_t last = 0;
    wide waited = 0;
    for (int32_t i = 1; i < count; i++)
        least = members[i].step->communication < least ? members[i].step->communication : least;
    for (int32_t i = 0; i < count; i++) {
        int64_t waits = members[i].step->communication - least;
        members[i].is_last = !waits;
        last += !waits;
        members[i].straggler_ns = within(members[i].step, waits);
        waited += members[i].straggler_ns;
    }
    blame(waited, members, count, false);
    blame(waited, members, count, true);
    for (int32_t i = 0; i < count && last < count; i++)
        members[i].of->last_steps += members[i].is_last ? steps : 0;
}

/* Charge what was moved out of the communication of a member. */
static void move(const core_run *run, const compared *member)
{
    attempt *one = member->of;
    one->straggler_ns += member->straggler_ns;
    one->bubble_ns += member->bubble_ns;
    if (run->watcher.moved && (member->straggler_ns || member->bubble_ns)) {
        core_watched_move moved = {(int32_t)(one - run->attempts), member->step->first, member->step->last, member->straggler_ns,
                                   member->bubble_ns};
        run->watcher.moved(run->watcher.context, &moved);
    }
}

void compare_members(core_run *run, group *own, int32_t count)
{
    compared *members = run->compared;
    bool is_beginning = false, is_single = true, is_counted = true;
    for (int32_t i = 0; i < count; i++) {
        is_beginning |= members[i].step->beginning;
        is_single &= members[i].step->first == members[i].step->last;
        is_counted &= members[i].step->counted;
    }
    /* In how many steps of a sum a rank was the last is not known: they do not count for that. Nor does a step that is not in the
     * bounds of all. */
    is_single &= is_counted;
    int64_t step = members[0].step->last;
    if (own->stages)
        compare_pipeline(run, own, count, is_single);
    else
        compare_group(members, count, is_single);
    for (int32_t i = 0; i < count; i++) {
        move(run, &members[i]);
        members[i].of->matched_ns += members[i].step->length;
        members[i].of->compared_steps += is_single;
        if (is_counted && !is_beginning) {
            members[i].of->compared_own_ns += members[i].step->own;
            members[i].of->compared_count += members[i].step->last - members[i].step->first + 1;
        }
    }
    if (!is_beginning)
        onsets_note(run, members, count, step);
}
