/* Step blocks, as the C files of this extension see them. */
#ifndef GOODPUT_STEPS_H
#define GOODPUT_STEPS_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { NUMBER, STEP, START, END, SAMPLES, DEVICE, TOTALS = 8, CELL_BYTES_MAX = 8 };
enum { PHASES_MAX = 28, COLUMNS_MAX = TOTALS + 2 * PHASES_MAX, SUMS_ON_STACK = 64 };
#define VALUE_MAX ((UINT64_C(1) << 62) - 1)
#define COUNT_MAX (PY_SSIZE_T_MAX >> 16) /* No size in bytes overflows. */

/* A step block; `numbers` has `first` and then `least`, 2 * used in all. */
typedef struct {
    const uint8_t *columns, *widths, *cells;
    Py_ssize_t count, used, cell_bytes;
    int64_t *numbers;
} Block;

/* What is known of the rows of several blocks: see pushed_steps.PushedSteps. */
typedef struct {
    uint64_t first, last, step, start, end;
    int wrong;
} Heads;

/* Whether its cells have the length that it says, and its columns are among `columns`, so that it can be decoded;
 * `widths_used` is the length of its widths. */
int block_fits(const Block *block, Py_ssize_t columns, Py_ssize_t widths_used);
/* Whether the block is one that step_blocks.check_block accepts; block_fits has accepted it. */
int block_is_accepted(const Block *block, Py_ssize_t rows_max);
/* Read a block from MessagePack if it can be decoded into `columns`; `numbers` has room for two for each column. */
int block_of_bytes(const char *at, Py_ssize_t size, Py_ssize_t columns, Block *block);
/* Decode into `values`, which has `rows` for each of `columns`, from row `at` on, and note what is known of the rows.
 * `sums` has room for the block's rows. */
void block_decode(const Block *block, uint64_t *values, Py_ssize_t columns, Py_ssize_t rows, Py_ssize_t at, uint64_t *sums,
                  Heads *heads);

/* Decode `count` rows from row `begin` on, and note nothing. `sums` has room for `count`. */
void block_decode_rows(const Block *block, Py_ssize_t begin, Py_ssize_t count, uint64_t *values, Py_ssize_t columns,
                       Py_ssize_t rows, Py_ssize_t at, uint64_t *sums);
/* The first row with a number above `after`, `count` if there is none; -1 unless the numbers ascend. */
Py_ssize_t block_first_above(const Block *block, int64_t after);
/* The first row from `begin` on that ends at `from_ns` or later, `count` if there is none. */
Py_ssize_t block_first_reaching(const Block *block, Py_ssize_t begin, int64_t from_ns);

PyObject *known_ranks(PyObject *self, PyObject *arguments);

#endif
