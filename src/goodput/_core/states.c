/* Arithmetic on times by state. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* The place of a planned state among them, else -1. */
int planned_place(int state)
{
    static const int8_t places[ROW_STATES] = {
        [CHECKPOINT] = 1, [EVALUATION] = 2, [ROLLOUT] = 3, [COMPILE] = 4, [RESTORE] = 5};
    return places[state] - 1;
}

bool is_planned(int state)
{
    return planned_place(state) >= 0;
}

int64_t sum_of(const int64_t *values, int count)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

/* Time that can be a stall. */
int64_t unplanned_ns(const int64_t *states)
{
    int64_t sum = 0;
    for (int i = 0; i < ROW_STATES; i++)
        sum += is_planned(i) ? 0 : states[i];
    return sum;
}

void move_to_stall(int64_t *states)
{
    int64_t moved = unplanned_ns(states);
    for (int i = 0; i < ROW_STATES; i++)
        states[i] = is_planned(i) ? states[i] : 0;
    states[STALL] = moved;
}

/* Make both vectors non-negative and their sum `spent_ns`: an excess is cut in proportion, missing time is unattributed. */
void fit(wide *gap, wide *inside, int64_t spent_ns)
{
    wide known = 0, *parts[] = {gap, inside}, *largest = gap;
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < ROW_STATES; i++) {
            wide *one = &parts[part][i];
            *one = *one < 0 ? 0 : *one;
            known += *one;
            largest = *one > *largest ? one : largest;
        }
    wide sum = 0;
    if (known > spent_ns) {
        for (int part = 0; part < 2; part++)
            for (int i = 0; i < ROW_STATES; i++) {
                /* Below 2^62 and 2^72: the product would leave 128 bits only if both were at their bounds. */
                wide ns = parts[part][i], whole = known;
                while (whole >> 64) {
                    whole >>= 1;
                    ns >>= 1;
                }
                parts[part][i] = ns * spent_ns / whole;
                parts[part][i] = parts[part][i] > spent_ns ? spent_ns : parts[part][i];
                sum += parts[part][i];
            }
        /* The rest of the division; with halved numbers the sum may be above what there is. */
        *largest += spent_ns - sum;
        if (*largest < 0) {
            memset(gap, 0, sizeof(*gap) * ROW_STATES);
            memset(inside, 0, sizeof(*inside) * ROW_STATES);
            gap[UNATTRIBUTED] = spent_ns;
        }
        return;
    }
    gap[UNATTRIBUTED] += spent_ns - known;
}

/* `ns` times a part of a whole, rounded down; 0 of nothing. */
int64_t scaled(int64_t ns, wide part, wide whole)
{
    if (whole <= 0)
        return 0;
    while (whole >> 64) {
        whole >>= 1;
        part >>= 1;
    }
    return (int64_t)(ns * part / whole);
}

/* Scale states from the sum `whole` to the sum `part`; the rest of the division goes to the largest. */
void share(int64_t *states, int64_t part, int64_t whole)
{
    int64_t sum = 0;
    int largest = 0;
    if (part == whole)
        return;
    for (int i = 0; i < ROW_STATES; i++)
        largest = states[i] > states[largest] ? i : largest;
    for (int i = 0; i < ROW_STATES; i++) {
        states[i] = scaled(states[i], part, whole);
        sum += states[i];
    }
    states[largest] += part - sum;
}

/* How much of a time lies in the bound of an attempt. */
int64_t overlap(const attempt *one, int64_t from_ns, int64_t to_ns)
{
    from_ns = from_ns > one->from_ns ? from_ns : one->from_ns;
    to_ns = to_ns < one->to_ns ? to_ns : one->to_ns;
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

void add_bounded(int64_t *sum, wide ns)
{
    ns += *sum;
    *sum = ns > VALUE_MAX ? VALUE_MAX : (int64_t)ns;
}

int ascending(const void *one, const void *other)
{
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

/* The median, of an even number the mean of both rounded down; sorts the values. */
int64_t median_of(int64_t *values, int64_t count)
{
    qsort(values, (size_t)count, sizeof(*values), ascending);
    int64_t half = count / 2;
    return count % 2 ? values[half] : values[half - 1] + (values[half] - values[half - 1]) / 2;
}
