/* Times of attempts by state and by phase. Most phases never have time, or none outside steps, and few states occur: only what an
 * attempt had takes memory, eight bytes each. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Room for the places of a layout whose phases are known; false without memory. */
bool layout_open(layout *own)
{
    int64_t columns = phase_column(own->phases, 0);
    own->places = malloc(2 * (size_t)columns * sizeof(*own->places));
    if (!own->places)
        return false;
    own->columns = own->places + columns;
    for (int64_t i = 0; i < 2 * columns; i++)
        own->places[i] = NOWHERE;
    return true;
}

/* The layout of these states, the same for all attempts that have them; -1 without memory. */
int32_t layout_of(core_run *run, int32_t phases, const uint8_t *states)
{
    for (int32_t i = run->layout_count - 1; i >= 0; i--)
        if (run->layouts[i].phases == phases && !memcmp(run->layouts[i].states, states, (size_t)phases))
            return i;
    layout own = {.phases = phases, .states = malloc((size_t)phases)};
    if (!own.states || !grow(&run->layouts, &run->layout_room, run->layout_count + 1, sizeof(own)) || !layout_open(&own)) {
        free(own.states);
        return -1;
    }
    memcpy(own.states, states, (size_t)phases);
    run->layouts[run->layout_count] = own;
    return run->layout_count++;
}

/* Note that an attempt will have time in a column, in the width that its values must have. */
static void need(layout *own, int64_t column, int32_t *width)
{
    if (own->places[column] == NOWHERE) {
        own->columns[own->used] = (uint16_t)column;
        own->places[column] = (uint16_t)own->used++;
    }
    *width = own->places[column] < *width ? *width : own->places[column] + 1;
}

static bool widen(attempt *one, int32_t width)
{
    if (width <= one->width)
        return true;
    int64_t *values = realloc(one->values, (size_t)width * sizeof(*values));
    if (!values)
        return false;
    memset(values + one->width, 0, (size_t)(width - one->width) * sizeof(*values));
    one->values = values;
    one->width = (uint16_t)width;
    return true;
}

/* Go on in another layout, whose first phases are those of the one before. */
bool values_move(const layout *from, layout *to, attempt *one)
{
    attempt moved = {0};
    int32_t width = 0;
    for (int32_t i = 0; i < one->width; i++)
        need(to, from->columns[i], &width);
    if (!widen(&moved, width))
        return false;
    for (int32_t i = 0; i < one->width; i++)
        moved.values[to->places[from->columns[i]]] = one->values[i];
    free(one->values);
    one->values = moved.values;
    one->width = moved.width;
    return true;
}

/* Make room for all that rows may be charged to: `row` has a value other than 0 where one of them has. */
bool values_reserve(layout *own, attempt *one, const int64_t *row, bool is_long)
{
    const int64_t *totals = row + ROW_TOTALS, *outside = totals + own->phases;
    int32_t width = 0;
    need(own, INSIDE + UNATTRIBUTED, &width);
    need(own, OUTSIDE + UNATTRIBUTED, &width);
    if (!one->sums.rows) {
        need(own, INSIDE + COMPILE, &width);
        need(own, OUTSIDE + STARTUP, &width);
    }
    for (int32_t i = 0; i < own->phases; i++) {
        if (!totals[i] && !outside[i])
            continue;
        need(own, INSIDE + own->states[i], &width);
        need(own, phase_column(i, TOTAL), &width);
        need(own, phase_column(i, USUAL), &width);
        if (!outside[i])
            continue;
        need(own, OUTSIDE + own->states[i], &width);
        need(own, phase_column(i, TOTAL_OUTSIDE), &width);
    }
    if (is_long) {
        need(own, INSIDE + STALL, &width);
        need(own, OUTSIDE + STALL, &width);
    }
    return widen(one, width);
}

/* Add times by state to the columns from `column` on. */
void values_add(const layout *own, attempt *one, int column, const int64_t *states)
{
    for (int i = 0; i < ROW_STATES; i++)
        if (states[i] && own->places[column + i] < one->width)
            one->values[own->places[column + i]] += states[i];
}

/* By phase: the totals, then those outside steps, then the time of usual steps. */
void totals_get(const layout *own, const attempt *one, int64_t *totals)
{
    for (int what = 0; what < PHASE_COLUMNS; what++)
        for (int32_t i = 0; i < own->phases; i++)
            *totals++ = value_at(own, one, phase_column(i, what));
}

void totals_put(const layout *own, attempt *one, const int64_t *totals)
{
    for (int what = 0; what < PHASE_COLUMNS; what++)
        for (int32_t i = 0; i < own->phases; i++, totals++)
            if (own->places[phase_column(i, what)] < one->width)
                one->values[own->places[phase_column(i, what)]] = *totals;
}
