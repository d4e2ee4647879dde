/* Step blocks, the format in which the wire and the ledger have the rows of an attempt: columns of differences.
 *
 * Of each column that is used a block has the value in the first row, the least difference and the bytes of a cell; a cell is a
 * row's difference to the one before less the least, and the first row has none. The lowest byte of every cell of a column comes
 * first, then the second of every cell. A row's start is counted from the end of the row before, its end from its start. The total of
 * phase 0 is what the other totals lack of the time since the row before. Arithmetic wraps around; what is out of range
 * is found when the rows are folded. */
#include <string.h>

#include "internal.h"

/* Columns of a block; from TOTALS on a phase's total and the part of it outside steps, in turn. */
enum { NUMBER, STEP, START, END, SAMPLES, DEVICE, TOTALS = 8 };
#define CELL_BYTES_MAX 8

static bool is_block(const core_block *block, int32_t phases)
{
    int64_t stride = 0;
    if (block->count < 1 || block->count > CORE_BLOCK_ROWS_MAX || block->used < 0 || block->used > TOTALS + 2 * phases ||
        (block->used && (!block->columns || !block->first || !block->least || !block->widths)))
        return false;
    for (int32_t i = 0; i < block->used; i++) {
        int column = block->columns[i];
        if (column >= TOTALS + 2 * phases || column == DEVICE + 1 || column == DEVICE + 2 || block->widths[i] > CELL_BYTES_MAX ||
            (i && column <= block->columns[i - 1]))
            return false;
        stride += block->widths[i];
    }
    return block->cell_bytes == (block->count - 1) * stride && (!block->cell_bytes || block->cells);
}

/* Where a column is in a row as it is folded; START is put where the samples come later. */
static int place_of(int column, int32_t phases)
{
    static const int plain[] = {ROW_NUMBER, ROW_STEP, -1, ROW_END, ROW_SAMPLES, ROW_DEVICE};
    if (column < TOTALS)
        return plain[column];
    return ROW_TOTALS + (column - TOTALS) / 2 + (column % 2 ? phases : 0);
}

static uint64_t cell(const core_block *block, const uint8_t *plane, int width, int64_t row)
{
    uint64_t found = 0;
    for (int byte = 0; byte < width; byte++)
        found |= (uint64_t)plane[byte * (block->count - 1) + row - 1] << 8 * byte;
    return found;
}

static void decode(const core_block *block, int32_t phases, uint64_t *rows)
{
    int64_t width = ROW_TOTALS + 2 * (int64_t)phases;
    const uint8_t *plane = block->cells;
    uint64_t lacking = 0;
    memset(rows, 0, (size_t)(block->count * width) * sizeof(*rows));
    for (int32_t i = 0; i < block->used; i++) {
        int column = block->columns[i], place = place_of(column, phases), is_total = column > TOTALS && column % 2 == 0;
        uint64_t value = (uint64_t)block->first[i];
        lacking += column == TOTALS ? 2 * value : is_total ? value : column == END ? -value : 0;
        for (int64_t row = 0; row < block->count; row++) {
            uint64_t grown = row ? cell(block, plane, block->widths[i], row) + (uint64_t)block->least[i] : 0;
            value += grown;
            /* The end grows by the start's differences, too; the first start is not needed. */
            if (column == START)
                rows[row * width + ROW_END] = row ? rows[(row - 1) * width + ROW_END] + grown : 0;
            else
                rows[row * width + place] += value;
        }
        plane += block->widths[i] * (block->count - 1);
    }
    for (int64_t row = 0; row < block->count; row++) {
        uint64_t *own = rows + row * width, others = 0;
        for (int32_t phase = 1; phase < phases; phase++)
            others += own[ROW_TOTALS + phase];
        own[ROW_TOTALS] = own[ROW_END] - others + lacking - own[ROW_TOTALS];
    }
}

int core_fold_block(core_run *run, int32_t index, const core_block *block, core_counts *counts)
{
    attempt *one = attempt_at(run, index);
    int32_t phases = one ? run->layouts[one->layout].phases : 0;
    if (!one || !block || !counts || !is_block(block, phases))
        return CORE_BAD_ARGUMENT;
    int64_t values = block->count * (ROW_TOTALS + 2 * (int64_t)phases);
    if (!grow(&run->rows, &run->row_room, values, sizeof(*run->rows)))
        return CORE_NO_MEMORY;
    decode(block, phases, (uint64_t *)run->rows);
    return fold_rows(run, one, run->rows, block->count, counts);
}
