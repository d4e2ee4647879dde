/* How long a wait may be: the step lengths of a rank before it, of earlier attempts those that ended before it began.
 *
 * The threshold is 10 times the 99th percentile of the rank's last CORE_WINDOW single steps, the first of each attempt left
 * out since it compiles: the lower order statistic, of n sorted lengths the one with index 99 (n - 1) / 100. Of fewer than
 * FEW it is 10 times the longest; without any 30 minutes. It is never below the least. Only lengths above a tenth of the least
 * can raise it, and of these only those that fewer than RANK_MAX later ones equal or exceed, so few are kept. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define FEW 8
#define NONE_NS (1800 * SECOND_NS)
/* The place of the 99th percentile from the top, of CORE_WINDOW lengths; of fewer it is not further down. */
#define RANK_MAX (CORE_WINDOW - 99 * (CORE_WINDOW - 1) / 100)

static bool is_in_window(const history *own, const long_step *one)
{
    return own->count - one->number < CORE_WINDOW;
}

/* The `place`-th longest of the kept steps, 1 for the longest; 0 if there are fewer. */
static int64_t from_top(const history *own, uint32_t place)
{
    int64_t longest[RANK_MAX] = {0};
    uint32_t found = 0;
    for (uint32_t i = 0; i < own->kept; i++) {
        if (!is_in_window(own, &own->past->steps[i]))
            continue;
        int64_t ns = own->past->steps[i].ns;
        uint32_t at = found < place ? found++ : place;
        while (at > 0 && longest[at - 1] < ns) {
            if (at < place)
                longest[at] = longest[at - 1];
            at--;
        }
        if (at < place)
            longest[at] = ns;
    }
    return found < place ? 0 : longest[place - 1];
}

int64_t history_threshold_ns(const history *own, int64_t least_ns)
{
    if (!own->count)
        return least_ns > NONE_NS ? least_ns : NONE_NS;
    uint32_t count = own->count < CORE_WINDOW ? own->count : CORE_WINDOW;
    int64_t usual = from_top(own, count < FEW ? 1 : count - 99 * (count - 1) / 100);
    if (usual > VALUE_MAX / TIMES)
        return VALUE_MAX;
    return usual * TIMES > least_ns ? usual * TIMES : least_ns;
}

/* The longest phase of each planned state. */
const int64_t *planned_of(const history *own)
{
    static const int64_t none[CORE_PLANNED_STATES];
    return own->past ? own->past->planned_ns : none;
}

/* What is known of a rank for an attempt, which may not have taken it over yet. */
const history *known_of(const core_run *run, const attempt *one)
{
    while (one->before >= 0)
        one = &run->attempts[one->before];
    return &one->past;
}

/* Begin as another one is, for which room was made. */
void history_inherit(history *own, const history *from)
{
    own->count = from->count;
    own->kept = from->kept;
    if (!from->past)
        return;
    memcpy(own->past->planned_ns, from->past->planned_ns, sizeof(own->past->planned_ns));
    memcpy(own->past->steps, from->past->steps, from->kept * sizeof(own->past->steps[0]));
}

/* Make room for `rows` more lengths and for longest phases; false without memory. */
bool history_reserve(history *own, int64_t rows)
{
    int64_t wanted = own->kept + rows;
    wanted = wanted > CORE_WINDOW + 1 ? CORE_WINDOW + 1 : wanted;
    if (own->past && wanted <= own->room)
        return true;
    uint32_t room = own->room ? own->room : 8;
    while (room < wanted)
        room *= 2;
    long_times *past = realloc(own->past, sizeof(*past) + room * sizeof(past->steps[0]));
    if (!past)
        return false;
    if (!own->past)
        memset(past, 0, sizeof(*past));
    own->past = past;
    own->room = room;
    return true;
}

/* Add a length, for which room was made if it is long. */
void history_add(history *own, int64_t ns, int64_t least_ns)
{
    if (own->count == UINT32_MAX)
        return;
    own->count++;
    if (ns <= least_ns / TIMES)
        return;
    uint32_t kept = 0;
    long_step *steps = own->past->steps;
    for (uint32_t i = 0; i < own->kept; i++) {
        long_step one = steps[i];
        one.longer += ns >= one.ns;
        if (one.longer < RANK_MAX && is_in_window(own, &one))
            steps[kept++] = one;
    }
    steps[kept] = (long_step){ns, own->count, 0};
    own->kept = kept + 1;
}
