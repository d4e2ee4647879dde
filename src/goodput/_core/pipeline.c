/* One step of a pipeline: how long ranks wait for a slower rank of their unit, for a slower rank or stage, and for the schedule.
 *
 * A pipeline of p stages and m microbatches takes (m - 1) x (time of its slowest stage) + (time of all stages) per microbatch
 * (GPipe and 1F1B alike), so a stage with own time T above the others' costs them (m - 1) / m of the difference. A rank that is
 * slower than its stage holds up the stage's collective too, and costs the others all of the difference. Spreading the work
 * evenly would bring a part of the bubble back that 1F1B hides behind a slow rank; at most half of the waiting is taken for it,
 * since an interleaved schedule has a smaller bubble. */
#include <stdlib.h>

#include "internal.h"

typedef struct {
    core_run *run;
    const group *of;
    int64_t slow_ns, longest_ns; /* the usual own time of the slowest stage; the longest of a unit */
    wide total, kept;            /* waiting for each other; what remains of it with the even schedule's bubble */
    int32_t units;
} schedule;

/* What ranks wait for a slower rank or stage; `covered`: within their own unit, but for the stage. */
typedef struct {
    wide for_rank, for_stage, covered;
} waits_for;

/* By stage, and by unit within it. */
int by_unit(const void *one, const void *other)
{
    const attempt *a = ((const compared *)one)->of, *b = ((const compared *)other)->of;
    if (a->stage != b->stage)
        return (a->stage > b->stage) - (a->stage < b->stage);
    if (a->unit != b->unit)
        return (a->unit > b->unit) - (a->unit < b->unit);
    return (a->rank > b->rank) - (a->rank < b->rank);
}

static int by_rank(const void *one, const void *other)
{
    const attempt *a = ((const compared *)one)->of, *b = ((const compared *)other)->of;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* What a stage that works so much longer costs another one; all of it where microbatches are not known. */
static int64_t held_up_ns(const group *of, int64_t late_ns)
{
    late_ns = late_ns > 0 ? late_ns : 0;
    return of->microbatches ? scaled(late_ns, of->microbatches - 1, of->microbatches) : late_ns;
}

static int64_t least_of(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

static void find_units(core_run *run, compared *members, int32_t count, schedule *found)
{
    unit *own = NULL;
    for (int32_t i = 0; i < count; i++) {
        const attempt *one = members[i].of;
        const span *step = members[i].step;
        if (!own || one->stage != own->stage || one->unit != members[own->from].of->unit) {
            own = &run->units[found->units++];
            *own = (unit){.from = i, .stage = one->stage, .least_ns = step->communication, .own_ns = step->own};
        }
        own->count++;
        if (step->communication < own->least_ns || (step->communication == own->least_ns && step->own > own->own_ns))
            own->own_ns = step->own;
        own->least_ns = least_of(own->least_ns, step->communication);
    }
    for (int32_t i = 0; i < found->units; i++)
        found->longest_ns = run->units[i].own_ns > found->longest_ns ? run->units[i].own_ns : found->longest_ns;
}

/* Note the usual own time of each stage, the lower median of its ranks, and which stages are the slowest. */
static void find_slow_stages(core_run *run, const compared *members, schedule *found)
{
    for (int32_t i = 0, end = 0; i < found->units; i = end) {
        int32_t count = 0;
        for (end = i; end < found->units && run->units[end].stage == run->units[i].stage; end++)
            for (int32_t at = run->units[end].from; at < run->units[end].from + run->units[end].count; at++)
                run->sorted[count++] = members[at].step->own;
        qsort(run->sorted, (size_t)count, sizeof(int64_t), ascending);
        for (int32_t at = i; at < end; at++) {
            run->units[at].usual_ns = run->sorted[(count - 1) / 2];
            run->units[at].is_whole_stage = end == i + 1;
        }
        found->slow_ns = run->units[i].usual_ns > found->slow_ns ? run->units[i].usual_ns : found->slow_ns;
    }
}

static void split_waiting(core_run *run, schedule *found, wide communication_ns, wide work_ns)
{
    for (int32_t i = 0; i < found->units; i++) {
        unit *own = &run->units[i];
        int64_t beside = found->slow_ns > own->own_ns ? found->slow_ns : own->own_ns;
        int64_t for_rank = found->longest_ns > beside ? found->longest_ns - beside : 0;
        own->for_rank_ns = least_of(for_rank, own->least_ns);
        own->for_stage_ns =
            least_of(held_up_ns(found->of, found->slow_ns - own->own_ns), own->least_ns - own->for_rank_ns);
        found->total += ((wide)own->for_rank_ns + own->for_stage_ns - own->least_ns) * own->count;
    }
    found->total += communication_ns;
    found->kept = found->total;
    if (found->of->microbatches) {
        wide bubble = work_ns * (found->of->stages - 1) / found->of->microbatches, half = found->total / 2;
        wide left = communication_ns - bubble > half ? communication_ns - bubble : half;
        found->kept = left < found->total ? left : found->total;
    }
}

static int64_t kept_part(const schedule *found, int64_t ns)
{
    return found->kept < found->total ? scaled(ns, found->kept, found->total) : ns;
}

/* Of a rank whose step is as long as `step_ns` without waiting, the least idle time of its schedule. */
static int64_t bubble_ns(const group *of, wide step_ns)
{
    if (!of->microbatches || step_ns <= 0)
        return 0;
    return (int64_t)(step_ns * (of->stages - 1) / (of->microbatches + of->stages - 1));
}

/* Of the next part of what is moved, what lies in the bound. `*moved` is what was moved before; the parts sum to what lies in the
 * bound of their sum, so nothing of communication that is moved whole remains where a bound cuts it. */
static int64_t next_within(const span *step, int64_t *moved, int64_t ns)
{
    int64_t before = within(step, *moved);
    *moved += ns;
    return within(step, *moved) - before;
}

/* Charge what the ranks of a unit wait for each other and for others; returns the first, adds the second to `*waited`. */
static wide charge_unit(const schedule *found, const unit *own, compared *members, int32_t count, waits_for *waited)
{
    wide in_group = 0;
    bool is_slow = own->usual_ns == found->slow_ns;
    int64_t for_rank = kept_part(found, own->for_rank_ns), for_stage = kept_part(found, own->for_stage_ns);
    for (int32_t i = own->from; i < own->from + own->count; i++) {
        const span *step = members[i].step;
        int64_t beyond = step->communication - own->least_ns;
        int64_t late = least_of(found->slow_ns, own->own_ns) - step->own;
        int64_t hidden = is_slow ? 0 : least_of(held_up_ns(found->of, late), beyond);
        int64_t waits = kept_part(found, beyond - hidden), covered = kept_part(found, hidden);
        wide busy = (wide)step->communication + step->own - found->kept / count;
        int64_t bubble = least_of(bubble_ns(found->of, busy), step->communication - waits - covered - for_rank - for_stage);
        int64_t moved = 0, in_unit = next_within(step, &moved, waits), for_slow = next_within(step, &moved, for_rank);
        int64_t hidden_part = next_within(step, &moved, covered), for_later = next_within(step, &moved, for_stage);
        move(found->run, members[i].of, in_unit + for_slow + hidden_part + for_later, next_within(step, &moved, bubble));
        members[i].is_last = !beyond;
        members[i].is_longest = !beyond && own->own_ns == found->longest_ns;
        in_group += in_unit;
        waited->for_rank += for_slow;
        waited->for_stage += hidden_part + for_later;
        waited->covered += hidden_part;
    }
    return in_group;
}

/* What the ranks of a stage of several units wait for its last rank: they meet in no unit's collective. */
static void compare_stage(const schedule *found, compared *members, int32_t count)
{
    int64_t latest = 0;
    wide waited = 0;
    for (int32_t i = 0; i < count; i++)
        latest = members[i].step->own > latest ? members[i].step->own : latest;
    for (int32_t i = 0; i < count; i++) {
        int64_t waits = least_of(latest - members[i].step->own, members[i].step->communication);
        waited += found->total > 0 ? within(members[i].step, scaled(waits, found->kept, found->total)) : 0;
        members[i].is_last = members[i].step->own == latest;
    }
    blame(waited, members, count, true);
}

/* Blame the ranks that were the longest of all for what whole units waited for them. */
static void blame_longest(compared *members, int32_t count, wide waited, bool is_waited_for)
{
    qsort(members, (size_t)count, sizeof(*members), by_rank);
    for (int32_t i = 0; i < count; i++) {
        members[i].is_last = members[i].is_longest;
        members[i].is_counted |= members[i].is_longest && is_waited_for;
    }
    blame(waited, members, count, false);
}

static void blame_stages(core_run *run, group *own, const schedule *found, wide waited, int64_t steps)
{
    int32_t slow = 0, at = 0;
    for (int32_t i = 0; i < found->units; i++)
        slow += run->units[i].usual_ns == found->slow_ns && (!i || run->units[i - 1].stage != run->units[i].stage);
    for (int32_t i = 0; i < found->units; i++) {
        const unit *one = &run->units[i];
        if (one->usual_ns != found->slow_ns || (i && one[-1].stage == one->stage))
            continue;
        add_bounded(&own->by_stage[one->stage].caused_ns, waited / slow + (at++ < waited % slow));
        own->by_stage[one->stage].steps += waited ? steps : 0;
    }
}

/* Compare the members, each with a step of the same index; `steps` is how many it counts for. */
void compare_pipeline(core_run *run, group *own, int32_t count, int64_t steps)
{
    compared *members = run->compared;
    schedule found = {.run = run, .of = own};
    wide communication = 0, work = 0;
    waits_for waited = {0};
    bool is_for_rank = false;
    qsort(members, (size_t)count, sizeof(*members), by_unit);
    for (int32_t i = 0; i < count; i++) {
        communication += members[i].step->communication;
        work += members[i].step->own;
        members[i].is_counted = false;
    }
    find_units(run, members, count, &found);
    find_slow_stages(run, members, &found);
    split_waiting(run, &found, communication, work);
    for (int32_t i = 0; i < found.units; i++) {
        const unit *one = &run->units[i];
        waited.covered = 0;
        wide in_group = charge_unit(&found, one, members, count, &waited);
        is_for_rank |= one->for_rank_ns > 0;
        blame(in_group, members + one->from, one->count, false);
        if (one->is_whole_stage)
            blame(in_group + waited.covered, members + one->from, one->count, true);
        for (int32_t at = one->from; at < one->from + one->count; at++)
            members[at].is_counted = in_group && members[at].is_last;
    }
    for (int32_t i = 0, end = 0; i < found.units; i = end) {
        int32_t ranks = 0;
        for (end = i; end < found.units && run->units[end].stage == run->units[i].stage; end++)
            ranks += run->units[end].count;
        if (end > i + 1)
            compare_stage(&found, members + run->units[i].from, ranks);
    }
    blame_longest(members, count, waited.for_rank, is_for_rank);
    for (int32_t i = 0; i < count; i++)
        members[i].of->sums.last_steps += members[i].is_counted ? steps : 0;
    blame_stages(run, own, &found, waited.for_stage, steps);
}
