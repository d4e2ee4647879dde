/* Step blocks: checked and decoded, whole or in part, as step_blocks.check_block and step_columns do. */
#include "_steps.h"

int block_fits(const Block *block, Py_ssize_t columns, Py_ssize_t widths_used)
{
    Py_ssize_t stride = 0;
    if (widths_used != block->used || block->count < 1 || block->count > COUNT_MAX)
        return 0;
    for (Py_ssize_t j = 0; j < block->used; j++) {
        if (block->widths[j] > CELL_BYTES_MAX || block->columns[j] >= columns)
            return 0;
        stride += block->widths[j];
    }
    return block->cell_bytes == (block->count - 1) * stride;
}

int block_is_accepted(const Block *block, Py_ssize_t rows_max)
{
    for (Py_ssize_t j = 0; j < block->used; j++) {
        if ((j && block->columns[j] <= block->columns[j - 1]) || block->columns[j] == DEVICE + 1 ||
            block->columns[j] == DEVICE + 2)
            return 0;
        if ((uint64_t)block->numbers[j] > VALUE_MAX)
            return 0;
    }
    return block->count <= rows_max;
}

/* The sum of the differences of rows 1 to `row` - 1 of a column whose cells are at `plane`. */
static uint64_t grown_before(const Block *block, Py_ssize_t j, const uint8_t *plane, Py_ssize_t row)
{
    uint64_t found = 0;
    for (int byte = 0; byte < block->widths[j]; byte++, plane += block->count - 1) {
        uint64_t sum = 0;
        for (Py_ssize_t i = 0; i + 1 < row; i++)
            sum += plane[i];
        found += sum << 8 * byte;
    }
    return row > 1 ? found + (uint64_t)(row - 1) * (uint64_t)block->numbers[block->used + j] : 0;
}

void block_decode_rows(const Block *block, Py_ssize_t begin, Py_ssize_t count, uint64_t *values, Py_ssize_t columns,
                       Py_ssize_t rows, Py_ssize_t at, uint64_t *sums)
{
    Py_ssize_t rest = block->count - 1, own_first = begin == 0; /* Row 0 has no cell. */
    const uint8_t *plane = block->cells;
    uint64_t *start = values + START * rows + at, *end = values + END * rows + at, *none = values + TOTALS * rows + at;
    uint64_t end_before = 0, lacking = 0; /* The end of the row before; what the other totals of row 0 lack of its end. */
    for (Py_ssize_t column = 0; column < columns; column++)
        memset(values + column * rows + at, 0, sizeof(uint64_t) * (size_t)count);
    memset(sums, 0, sizeof(uint64_t) * (size_t)count);
    for (Py_ssize_t j = 0; j < block->used; j++) {
        int column = block->columns[j], width = block->widths[j], is_total = column > TOTALS && column % 2 == 0;
        uint64_t *own = values + column * rows + at, least = (uint64_t)block->numbers[block->used + j];
        uint64_t first = (uint64_t)block->numbers[j], before = grown_before(block, j, plane, begin);
        lacking += column == TOTALS ? 2 * first : is_total ? first : column == END ? -first : 0;
        if (own_first)
            own[0] = first;
        for (int byte = 0; byte < width; byte++, plane += rest)
            for (Py_ssize_t i = own_first; i < count; i++)
                own[i] |= (uint64_t)plane[begin + i - 1] << 8 * byte;
        for (Py_ssize_t i = own_first; i < count; i++)
            own[i] += least;
        if (column == START || column == END) {
            end_before += before + (column == END ? first : 0);
            continue;
        }
        if (!own_first)
            own[0] += first + before;
        for (Py_ssize_t i = 1; i < count; i++)
            own[i] += own[i - 1];
        if (is_total)
            for (Py_ssize_t i = 0; i < count; i++)
                sums[i] += own[i];
    }
    for (Py_ssize_t i = own_first; i < count; i++) {
        start[i] += i ? end[i - 1] : end_before;
        end[i] += start[i];
    }
    /* What the totals of the others lack of the time since the row before. */
    for (Py_ssize_t i = 0; i < count; i++)
        none[i] = end[i] - sums[i] + lacking - none[i];
}

/* Whether a row is one that no rank can have recorded, as step_columns.wrong_rows. */
static int has_wrong_row(const uint64_t *values, Py_ssize_t columns, Py_ssize_t rows, Py_ssize_t at, Py_ssize_t count,
                         uint64_t *sums)
{
    const uint64_t *number = values + NUMBER * rows + at, *start = values + START * rows + at;
    const uint64_t *end = values + END * rows + at, *device = values + DEVICE * rows + at;
    int wrong = 0;
    memset(sums, 0, sizeof(uint64_t) * (size_t)count);
    for (Py_ssize_t column = 0; column < columns; column++) {
        const uint64_t *own = values + column * rows + at;
        for (Py_ssize_t i = 0; i < count; i++)
            wrong |= own[i] > VALUE_MAX;
    }
    if (wrong)
        return 1;
    for (Py_ssize_t i = 0; i < count; i++)
        wrong |= number[i] < 1 || end[i] < start[i] || (i && number[i] <= number[i - 1]);
    for (Py_ssize_t column = TOTALS; column + 1 < columns; column += 2) {
        const uint64_t *total = values + column * rows + at, *outside = total + rows;
        for (Py_ssize_t i = 0; i < count; i++) {
            wrong |= outside[i] > total[i];
            sums[i] += total[i] - outside[i];
            sums[i] = sums[i] > VALUE_MAX ? VALUE_MAX : sums[i]; /* No device time is more. */
        }
    }
    for (Py_ssize_t i = 0; i < count; i++)
        wrong |= device[i] > sums[i];
    return wrong;
}

static void note_heads(Heads *heads, const uint64_t *values, Py_ssize_t rows, Py_ssize_t at, Py_ssize_t count)
{
    const uint64_t *start = values + START * rows + at, *end = values + END * rows + at;
    if (at == 0) {
        heads->first = values[NUMBER * rows];
        heads->step = values[STEP * rows];
        heads->start = start[0];
        heads->end = end[0];
    }
    heads->last = values[NUMBER * rows + at + count - 1];
    for (Py_ssize_t i = 0; i < count; i++) {
        heads->start = (int64_t)start[i] < (int64_t)heads->start ? start[i] : heads->start;
        heads->end = (int64_t)end[i] > (int64_t)heads->end ? end[i] : heads->end;
    }
}

void block_decode(const Block *block, uint64_t *values, Py_ssize_t columns, Py_ssize_t rows, Py_ssize_t at, uint64_t *sums,
                  Heads *heads)
{
    block_decode_rows(block, 0, block->count, values, columns, rows, at, sums);
    heads->wrong |= has_wrong_row(values, columns, rows, at, block->count, sums);
    note_heads(heads, values, rows, at, block->count);
}

/* A column of a block, row by row: the cell of row `i` is `least` and its bytes, which are `stride` apart. */
typedef struct {
    const uint8_t *plane;
    Py_ssize_t stride;
    uint64_t first, least;
    int width;
} Column;

static Column column_of(const Block *block, int wanted)
{
    const uint8_t *plane = block->cells;
    for (Py_ssize_t j = 0; j < block->used; plane += block->widths[j++] * (block->count - 1))
        if (block->columns[j] == wanted)
            return (Column){plane, block->count - 1, (uint64_t)block->numbers[j], (uint64_t)block->numbers[block->used + j],
                            block->widths[j]};
    return (Column){NULL, 0, 0, 0, 0};
}

/* By how much row `row`, which is not the first, is above the row before. */
static uint64_t grown_in(const Column *column, Py_ssize_t row)
{
    uint64_t found = column->least;
    for (int byte = 0; byte < column->width; byte++)
        found += (uint64_t)column->plane[byte * column->stride + row - 1] << 8 * byte;
    return found;
}

Py_ssize_t block_first_above(const Block *block, int64_t after)
{
    Column number = column_of(block, NUMBER);
    int64_t at = (int64_t)number.first;
    Py_ssize_t found = at > after ? 0 : block->count;
    for (Py_ssize_t row = 1; row < block->count; row++) {
        uint64_t grown = grown_in(&number, row);
        if (grown - 1 > VALUE_MAX || (uint64_t)at + grown > VALUE_MAX)
            return -1;
        at += (int64_t)grown;
        found = at > after && row < found ? row : found;
    }
    return at < 0 ? -1 : found;
}

Py_ssize_t block_first_reaching(const Block *block, Py_ssize_t begin, int64_t from_ns)
{
    Column start = column_of(block, START), end = column_of(block, END);
    uint64_t at = end.first;
    for (Py_ssize_t row = 0; row < block->count; row++) {
        at += row ? grown_in(&start, row) + grown_in(&end, row) : 0;
        if (row >= begin && (int64_t)at >= from_ns)
            return row;
    }
    return block->count;
}
