/* The core under calls at random, good and bad, for sanitizers: `wild_calls SEED CALLS`.
 *
 * After every call each attempt's states must sum to the time that it has, and a snapshot must restore to the same bytes. Snapshots
 * with changed bytes are refused; with -DFORGED they have the right checksum, and are refused or make a run that bears all calls. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define PHASES 14
#define WIDTH (ROW_TOTALS + 2 * PHASES)
#define ATTEMPTS 24
#define TOTALS_OF_BLOCK 8

typedef struct {
    uint64_t random;
    int64_t start_ns[ATTEMPTS], from_ns[ATTEMPTS], to_ns[ATTEMPTS], now[ATTEMPTS][WIDTH];
    int phases[ATTEMPTS], attempts, groups, is_watching;
    __int128 watched[ATTEMPTS][2 * ROW_STATES];
} driver;

static uint64_t below(driver *my, uint64_t bound)
{
    my->random ^= my->random << 13;
    my->random ^= my->random >> 7;
    my->random ^= my->random << 17;
    return my->random % bound;
}

static int64_t any_value(driver *my)
{
    static const int64_t edges[] = {0, 1, -1, INT64_MAX, INT64_MIN, (INT64_C(1) << 62) - 1, INT64_C(1) << 62, 60000000000};
    return below(my, 2) ? edges[below(my, sizeof(edges) / sizeof(edges[0]))] : (int64_t)(my->random >> below(my, 64));
}

static int any_index(driver *my, int count)
{
    return below(my, 50) ? (int)below(my, (uint64_t)count + 1) : (int)any_value(my);
}

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void add_attempt(driver *my, core_run *run)
{
    uint8_t states[PHASES];
    int at = my->attempts;
    my->phases[at] = 1 + (int)below(my, PHASES);
    for (int i = 0; i < PHASES; i++)
        states[i] = (uint8_t)below(my, ROW_STATES + (below(my, 60) == 0));
    core_attempt_facts facts = {.rank = (int64_t)below(my, 5), .start_ns = (int64_t)below(my, 1000000000),
                                .before = below(my, 3) ? -1 : any_index(my, at), .group = any_index(my, my->groups),
                                .unit = (int32_t)below(my, 3), .stage = (int32_t)below(my, 4), .phases = my->phases[at],
                                .states = states};
    if (core_attempt(run, &facts) < 0)
        return;
    my->start_ns[at] = facts.start_ns;
    my->from_ns[at] = 0;
    my->to_ns[at] = INT64_MAX;
    memset(my->now[at], 0, sizeof(my->now[at]));
    my->now[at][ROW_STEP] = -1;
    my->now[at][ROW_END] = facts.start_ns;
    memset(my->watched[at], 0, sizeof(my->watched[at]));
    my->attempts++;
}

static void watch_row(void *context, const core_watched_row *row)
{
    driver *my = context;
    for (int i = 0; i < ROW_STATES; i++) {
        my->watched[row->attempt][i] += row->inside[i];
        my->watched[row->attempt][ROW_STATES + i] += row->outside[i];
    }
}

static void watch_first(void *context, const core_watched_first *first)
{
    driver *my = context;
    for (int i = 0; i < ROW_STATES; i++)
        my->watched[first->attempt][i] += first->after[i] - first->before[i];
}

static void watch_move(void *context, const core_watched_move *move)
{
    driver *my = context;
    my->watched[move->attempt][COMMUNICATION] -= move->straggler_ns + move->bubble_ns;
}

/* What was watched sums to what is read, until a call that is made without a watcher. */
static void watch(driver *my, core_run *run)
{
    core_watcher watcher = {watch_row, watch_first, watch_move, my};
    int64_t values[READ_COUNT];
    for (int at = 0; at < my->attempts; at++) {
        core_read(run, at, 1, values);
        for (int i = 0; i < 2 * ROW_STATES; i++)
            my->watched[at][i] = values[i];
    }
    core_watch(run, &watcher);
}

static void fold(driver *my, core_run *run)
{
    int at = (int)below(my, (uint64_t)my->attempts), rows = (int)below(my, 40), phases = my->phases[at];
    int width = ROW_TOTALS + 2 * phases;
    int64_t *values = malloc(sizeof(int64_t) * (size_t)(rows * width + 1)), *row = my->now[at];
    for (int i = 0; i < rows; i++) {
        int64_t count = below(my, 9) ? 1 : 1 + (int64_t)below(my, 4);
        row[ROW_NUMBER] += count;
        row[ROW_STEP] += below(my, 90) ? count : (int64_t)below(my, 50);
        row[ROW_SAMPLES] += (int64_t)below(my, 100);
        for (int phase = 0; phase < phases; phase++) {
            int64_t ns = (int64_t)below(my, below(my, 3) ? 1000 : below(my, 9) ? 70000000000 : 900000000000);
            row[ROW_TOTALS + phase] += ns;
            row[ROW_TOTALS + phases + phase] += below(my, 4) ? 0 : ns;
            row[ROW_END] += ns;
        }
        memcpy(values + i * width, row, sizeof(int64_t) * (size_t)width);
        if (!below(my, 40))
            values[i * width + (int)below(my, (uint64_t)width)] = any_value(my);
    }
    core_counts counts = {0};
    int32_t attempts[] = {at};
    int64_t numbers[] = {rows};
    core_fold(run, attempts, numbers, 1, values, below(my, 60) ? rows * width : any_value(my) / 2, &counts);
    free(values);
}

static void fold_blocks(driver *my, core_run *run)
{
    int32_t attempts[3];
    int64_t rows[3], values[3 * WIDTH], size = 0;
    core_counts counts = {0};
    for (int i = 0; i < 3; i++) {
        attempts[i] = any_index(my, my->attempts - 1);
        rows[i] = below(my, 20) ? (int64_t)below(my, 2) : any_value(my);
        size += attempts[i] >= 0 && attempts[i] < my->attempts && rows[i] == 1 ? ROW_TOTALS + 2 * my->phases[attempts[i]] : 0;
    }
    for (int i = 0; i < 3 * WIDTH; i++)
        values[i] = any_value(my);
    core_fold(run, attempts, rows, 3, values, size, &counts);
}

/* A block whose fields mostly fit each other. */
static void fold_block(driver *my, core_run *run)
{
    uint8_t columns[80], widths[80], *cells;
    int64_t first[80], least[80], stride = 0;
    int at = any_index(my, my->attempts), used = 0;
    core_counts counts = {0};
    for (int column = 0; column < TOTALS_OF_BLOCK + 2 * PHASES && used < 80; column++) {
        if (column == 6 || column == 7 ? below(my, 90) : below(my, 3) == 0)
            continue;
        columns[used] = (uint8_t)(below(my, 200) ? column : (int)below(my, 256));
        widths[used] = (uint8_t)below(my, below(my, 100) ? 4 : 12);
        first[used] = below(my, 4) ? (int64_t)below(my, 100000) : any_value(my);
        least[used] = below(my, 4) ? 0 : any_value(my);
        stride += widths[used++];
    }
    int64_t count = below(my, 30) ? 1 + (int64_t)below(my, 20) : any_value(my);
    int64_t bytes = count > 0 && count < 100 ? (count - 1) * stride : (int64_t)below(my, 500);
    cells = malloc((size_t)bytes + 1);
    for (int64_t i = 0; i < bytes; i++)
        cells[i] = (uint8_t)below(my, 256);
    bytes = below(my, 30) ? bytes : bytes - (int64_t)below(my, 3);
    core_block block = {.count = count, .cell_bytes = bytes, .used = used, .columns = columns, .widths = widths,
                        .cells = cells, .first = first, .least = least};
    core_fold_block(run, at, &block, &counts);
    free(cells);
}

static void read_all(driver *my, core_run *run)
{
    int64_t values[READ_COUNT], tail[TAIL_COUNT], totals[PHASES], phases[PHASES], steps, caused;
    core_stretch stretches[CORE_STRETCHES_MAX];
    double *rates = malloc(sizeof(*rates) * ATTEMPTS);
    core_read_rates(run, rates, core_attempts(run));
    free(rates);
    for (int i = 0; i < PHASES; i++)
        totals[i] = any_value(my);
    for (int at = -1; at <= my->attempts; at++) {
        if (core_read(run, at, 1, values) < 0)
            continue;
        __int128 sum = values[READ_STRAGGLER] + (__int128)values[READ_BUBBLE] + values[READ_LOST];
        for (int i = 0; i < 2 * ROW_STATES; i++) {
            sum += values[i];
            if (values[i] < 0)
                fail("a state has less than no time");
            if (my->is_watching && my->watched[at][i] != values[i])
                fail("what was watched is not what is read");
        }
        int64_t from_ns = my->start_ns[at] > my->from_ns[at] ? my->start_ns[at] : my->from_ns[at];
        int64_t to_ns = values[READ_END] < my->to_ns[at] ? values[READ_END] : my->to_ns[at];
        if (sum != (to_ns > from_ns ? to_ns - from_ns : 0))
            fail("the states do not sum to the time");
        if (values[READ_STRAGGLER] < 0 || values[READ_BUBBLE] < 0 || values[READ_THRESHOLD] < 0)
            fail("a sum is negative");
        core_read_stretches(run, at, stretches);
        core_read_phases(run, at, phases, my->phases[at], &steps);
        int64_t end_ns = below(my, 2) ? any_value(my) : values[READ_END] + (int64_t)below(my, 4000000000000);
        int how = (int)below(my, 4);
        if (core_tail(run, at, totals, (int)below(my, PHASES), any_index(my, ROW_STATES), end_ns, how, tail) == 0) {
            __int128 whole = 0;
            for (int i = 0; i < TAIL_STATES; i++)
                whole += tail[i];
            if (whole != (end_ns > values[READ_END] ? end_ns - values[READ_END] : 0))
                fail("the states of a tail do not sum to its time");
        }
    }
    for (int at = 0; at < my->groups; at++)
        core_read_stage(run, at, (int)below(my, 5), &caused, &steps);
}

#ifdef FORGED
/* As in snapshot.c, which has it at the end. */
static void forge_checksum(uint8_t *bytes, int64_t size)
{
    uint64_t sum = (uint64_t)size - 8, word;
    for (int64_t at = 0; at < size - 8; at += 8) {
        word = 0;
        memcpy(&word, bytes + at, size - 8 - at < 8 ? (size_t)(size - 8 - at) : 8);
        sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 32;
    }
    memcpy(bytes + size - 8, &sum, 8);
}

/* Call a run that was restored from changed bytes. */
static void call_wrong(driver other, core_run *wrong)
{
    for (int calls = 0; calls < 8 && other.attempts; calls++) {
        int64_t row[WIDTH], values[READ_COUNT];
        core_counts counts = {0};
        int at = (int)below(&other, (uint64_t)other.attempts), phases = core_phases_of(wrong, at);
        int32_t attempts[] = {at};
        int64_t one[] = {1};
        for (int value = 0; value < WIDTH; value++)
            row[value] = below(&other, 2) ? other.now[at][value] + 1 : any_value(&other);
        if (phases > 0 && phases <= PHASES)
            core_fold(wrong, attempts, one, 1, row, ROW_TOTALS + 2 * phases, &counts);
        core_read(wrong, at, 1, values);
        if (!below(&other, 9))
            core_end(wrong, at);
    }
    int64_t size = core_saved_bytes(wrong);
    uint8_t *bytes = malloc((size_t)size);
    core_save(wrong, bytes, size);
    free(bytes);
}
#endif

/* Restore a snapshot, and one that was changed; returns the first. */
static core_run *restore(driver *my, core_run *run)
{
    int64_t size = core_saved_bytes(run);
    uint8_t *bytes = malloc((size_t)size + 1), *again = malloc((size_t)size + 1);
    if (core_save(run, bytes, size))
        fail("a run is not saved");
    core_run *restored = core_restore(bytes, size);
    if (!restored || core_saved_bytes(restored) != size || core_save(restored, again, size) || memcmp(bytes, again, (size_t)size))
        fail("a snapshot does not restore to the same");
    for (int i = 0; i < 20; i++) {
        memcpy(again, bytes, (size_t)size);
        for (int changes = 0; changes < 1 + (int)below(my, 3); changes++)
            again[below(my, (uint64_t)size)] ^= (uint8_t)(1 << below(my, 8));
        int64_t kept = below(my, 5) ? size : (int64_t)below(my, (uint64_t)size);
#ifdef FORGED
        if (kept >= 8)
            forge_checksum(again, kept);
#endif
        core_run *wrong = core_restore(again, kept);
        if (!wrong)
            continue;
#ifdef FORGED
        call_wrong(*my, wrong);
#else
        if (kept < size || memcmp(bytes, again, (size_t)size))
            fail("a changed snapshot is restored");
#endif
        core_run_free(wrong);
    }
    free(bytes);
    free(again);
    core_run_free(run);
    return restored;
}

static void *drive(void *argument)
{
    const uint64_t *numbers = argument;
    driver my = {.random = numbers[0] * 2654435761u + 1};
    core_run *run = core_run_new(below(&my, 3) ? 60000000000 : (int64_t)below(&my, 1000));
    for (uint64_t call = 0; call < numbers[1]; call++) {
        switch (below(&my, 16)) {
        case 0:
            if (my.groups < 4 && core_group(run, (int)below(&my, 5), (int64_t)below(&my, 9)) >= 0)
                my.groups++;
            break;
        case 1:
            if (my.attempts < ATTEMPTS)
                add_attempt(&my, run);
            break;
        case 2:
            if (!below(&my, 10))
                core_end(run, any_index(&my, my.attempts));
            break;
        case 3:
            core_absent(run, any_index(&my, my.attempts));
            break;
        case 4:
            read_all(&my, run);
            break;
        case 5:
            run = restore(&my, run);
            my.is_watching = below(&my, 3) > 0;
            if (my.is_watching)
                watch(&my, run);
            break;
        case 8:
            fold_block(&my, run);
            break;
        case 7: {
            int64_t points[3] = {any_value(&my), (int64_t)below(&my, 300), any_value(&my)}, steps, ns;
            int at = any_index(&my, my.attempts), from = (int)below(&my, 3);
            core_limit(run, at, below(&my, 3) ? (int64_t)below(&my, 900) : any_value(&my), points + from, (int)below(&my, 4u - (unsigned)from));
            core_read_loss(run, at, any_index(&my, 3), &steps, &ns);
            int64_t from_ns = below(&my, 3) ? 0 : any_value(&my), to_ns = below(&my, 3) ? (INT64_C(1) << 62) - 1 : any_value(&my);
            if (core_bound(run, at, from_ns, to_ns) >= 0) {
                my.from_ns[at] = from_ns;
                my.to_ns[at] = to_ns;
            }
            if (!below(&my, 4))
                core_again(run, at, below(&my, 3) ? INT64_MAX : any_value(&my));
            break;
        }
        case 6:
            if (my.attempts)
                fold_blocks(&my, run);
            break;
        default:
            if (my.attempts)
                fold(&my, run);
        }
    }
    read_all(&my, run);
    core_run_free(run);
    return NULL;
}

int main(int count, char **arguments)
{
    uint64_t numbers[2][2] = {{0}};
    pthread_t threads[2];
    if (count != 3)
        return 2;
    for (int i = 0; i < 2; i++) {
        numbers[i][0] = strtoull(arguments[1], NULL, 10) + (uint64_t)i * 1000003;
        numbers[i][1] = strtoull(arguments[2], NULL, 10);
        pthread_create(&threads[i], NULL, drive, numbers[i]);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
