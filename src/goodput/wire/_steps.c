/* Step blocks decoded for Python: what an aggregator does with every step.
 *
 * The same results as step_columns and aggregator.column_attempt, which replace this where it could not be compiled; the same
 * tests run on both. Nothing that Python has checked is trusted: a block that would be read or written beyond its end raises
 * ValueError. */
#include "_steps.h"

/* Larger blocks are decoded without the interpreter's lock. */
#define CELLS_LOCKED_MAX (1 << 15)

/* A block, and the objects that its bytes belong to. */
typedef struct {
    Block of;
    PyObject *columns, *widths, *cells;
} HeldBlock;

static PyObject *name_count, *name_columns, *name_first, *name_least, *name_widths, *name_cells;

static void block_clear(HeldBlock *block)
{
    Py_CLEAR(block->columns);
    Py_CLEAR(block->widths);
    Py_CLEAR(block->cells);
    PyMem_Free(block->of.numbers);
    block->of.numbers = NULL;
}

static int read_bytes(PyObject *from, PyObject *name, PyObject **into)
{
    *into = PyObject_GetAttr(from, name);
    if (*into != NULL && !PyBytes_Check(*into))
        PyErr_Format(PyExc_TypeError, "%U of a step block is no bytes", name);
    return *into == NULL || PyErr_Occurred() ? -1 : 0;
}

static int read_numbers(PyObject *from, PyObject *name, int64_t *into, Py_ssize_t count)
{
    PyObject *found = PyObject_GetAttr(from, name);
    if (found == NULL)
        return -1;
    if (!PyTuple_Check(found) || PyTuple_Size(found) != count)
        PyErr_SetString(PyExc_ValueError, "the columns of a step block are not described once each");
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++)
        into[i] = PyLong_AsLongLong(PyTuple_GetItem(found, i));
    Py_DECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

/* Read a block and check that it can be decoded into `columns`. */
static int block_read(PyObject *from, Py_ssize_t columns, HeldBlock *held)
{
    Block *block = &held->of;
    PyObject *count = PyObject_GetAttr(from, name_count);
    memset(held, 0, sizeof *held);
    if (count == NULL)
        return -1;
    block->count = PyLong_AsSsize_t(count);
    Py_DECREF(count);
    if (PyErr_Occurred() || read_bytes(from, name_columns, &held->columns) < 0 ||
        read_bytes(from, name_widths, &held->widths) < 0 || read_bytes(from, name_cells, &held->cells) < 0)
        return -1;
    block->used = PyBytes_Size(held->columns);
    block->cell_bytes = PyBytes_Size(held->cells);
    block->columns = (const uint8_t *)PyBytes_AsString(held->columns);
    block->widths = (const uint8_t *)PyBytes_AsString(held->widths);
    block->cells = (const uint8_t *)PyBytes_AsString(held->cells);
    block->numbers = PyMem_Malloc(sizeof(int64_t) * (size_t)(2 * block->used + 1));
    if (block->numbers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (read_numbers(from, name_first, block->numbers, block->used) < 0 ||
        read_numbers(from, name_least, block->numbers + block->used, block->used) < 0)
        return -1;
    if (block_fits(block, columns, PyBytes_Size(held->widths)))
        return 0;
    PyErr_SetString(PyExc_ValueError, "a step block cannot be decoded");
    return -1;
}

static PyObject *count_rows(PyObject *self, PyObject *arguments)
{
    PyObject *blocks;
    Py_ssize_t width, rows_max, total = 0;
    if (!PyArg_ParseTuple(arguments, "O!nn", &PyList_Type, &blocks, &width, &rows_max))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(blocks) && total >= 0; i++) {
        HeldBlock block;
        if (block_read(PyList_GetItem(blocks, i), TOTALS + 2 * width, &block) < 0) {
            PyErr_Clear();
            total = -1;
        } else {
            total = block_is_accepted(&block.of, rows_max) ? total + block.of.count : -1;
        }
        block_clear(&block);
    }
    return PyLong_FromSsize_t(total);
}

static int decode_into(PyObject *blocks, uint64_t *values, Py_ssize_t columns, Py_ssize_t rows, Heads *heads)
{
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(blocks); i++) {
        HeldBlock held;
        uint64_t few[64], *sums = few;
        if (block_read(PyList_GetItem(blocks, i), columns, &held) < 0 || held.of.count > rows - at) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "step blocks have more rows than there is room for");
            block_clear(&held);
            return -1;
        }
        Py_ssize_t count = held.of.count;
        if (count > 64 && (sums = PyMem_Malloc(sizeof(uint64_t) * (size_t)count)) == NULL) {
            block_clear(&held);
            PyErr_NoMemory();
            return -1;
        }
        PyThreadState *saved = count * columns > CELLS_LOCKED_MAX ? PyEval_SaveThread() : NULL;
        block_decode(&held.of, values, columns, rows, at, sums, heads);
        if (saved != NULL)
            PyEval_RestoreThread(saved);
        if (sums != few)
            PyMem_Free(sums);
        at += count;
        block_clear(&held);
    }
    if (at == rows)
        return 0;
    PyErr_SetString(PyExc_ValueError, "step blocks have fewer rows than there is room for");
    return -1;
}

/* A matrix of 64-bit integers, row after row. */
static int get_matrix(PyObject *from, Py_buffer *view, int flags)
{
    if (PyObject_GetBuffer(from, view, flags) < 0)
        return -1;
    if (view->ndim == 2 && view->itemsize == 8)
        return 0;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "want a matrix of 64-bit integers");
    return -1;
}

static PyObject *decode(PyObject *self, PyObject *arguments)
{
    PyObject *blocks, *into;
    Py_buffer view;
    Heads heads = {0};
    if (!PyArg_ParseTuple(arguments, "O!O", &PyList_Type, &blocks, &into) ||
        get_matrix(into, &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    int result = -1;
    if (view.shape[0] < TOTALS + 2 || view.shape[0] > 256)
        PyErr_SetString(PyExc_ValueError, "want 10 to 256 columns");
    else
        result = decode_into(blocks, view.buf, view.shape[0], view.shape[1], &heads);
    PyBuffer_Release(&view);
    if (result < 0)
        return NULL;
    return Py_BuildValue("(LLLLL)i", (long long)heads.first, (long long)heads.last, (long long)heads.step,
                         (long long)heads.start, (long long)heads.end, heads.wrong);
}

/* How many rows a part has beyond a number; -1 if it is no tuple (block, width, first, last), see packed_rows. */
static Py_ssize_t rows_beyond(PyObject *part, int64_t number)
{
    if (!PyTuple_Check(part) || PyTuple_Size(part) != 4 || !PyBytes_Check(PyTuple_GetItem(part, 0)))
        return -1;
    int64_t first = PyLong_AsLongLong(PyTuple_GetItem(part, 2)), last = PyLong_AsLongLong(PyTuple_GetItem(part, 3));
    if (PyErr_Occurred() || first < 1 || last < first)
        return -1;
    int64_t count = last - (first - 1 > number ? first - 1 : number);
    return count > COUNT_MAX ? -1 : count > 0 ? (Py_ssize_t)count : 0;
}

/* Decode the first `wanted` of the last `left` rows of a packed block as block_decode does; returns 0 if it has fewer. */
static int decode_left(PyObject *packed, uint64_t *values, Py_ssize_t columns, Py_ssize_t rows, Py_ssize_t at,
                       Py_ssize_t left, Py_ssize_t wanted, uint64_t *used)
{
    int64_t numbers[2 * COLUMNS_MAX];
    Block block = {.numbers = numbers};
    if (!block_of_bytes(PyBytes_AsString(packed), PyBytes_Size(packed), columns, &block) || block.count < left)
        return 0;
    for (Py_ssize_t j = 0; j < block.used; j++)
        *used |= UINT64_C(1) << block.columns[j];
    uint64_t few[SUMS_ON_STACK], *sums = few;
    if (wanted > SUMS_ON_STACK && (sums = PyMem_Malloc(sizeof(uint64_t) * (size_t)wanted)) == NULL)
        return 0;
    block_decode_rows(&block, block.count - left, wanted, values, columns, rows, at, sums);
    if (sums != few)
        PyMem_Free(sums);
    return 1;
}

/* Where the page of a block begins that `decode_page` returns, and how many rows it has; -1 unless its numbers ascend. */
static Py_ssize_t page_of(const Block *block, long long after, PyObject *from_ns, Py_ssize_t rows, Py_ssize_t *begin,
                          int *is_reached)
{
    *begin = block_first_above(block, after);
    if (*begin >= 0 && from_ns != Py_None) {
        long long from = PyLong_AsLongLong(from_ns);
        if (PyErr_Occurred())
            return -1;
        Py_ssize_t reached = block_first_reaching(block, *begin, from);
        *is_reached = reached < block->count;
        *begin = reached > *begin ? reached - 1 : *begin;
    }
    return *begin < 0 ? -1 : rows < block->count - *begin ? rows : block->count - *begin;
}

/* (values, rows, is_reached): of a block in MessagePack up to `most` rows as columns, from the first one above the number
 * `after` on or, unless `from_ns` is None, from the one before the first of those that ends then or later, the last where
 * that is not reached. `phases` are those that the block may have. None if it cannot be decoded or its numbers do not ascend. */
static PyObject *decode_page(PyObject *self, PyObject *arguments)
{
    const char *packed;
    Py_ssize_t size, phases, columns, rows_max, most, begin;
    long long after;
    PyObject *from_ns, *values;
    int64_t numbers[2 * COLUMNS_MAX];
    Block block = {.numbers = numbers};
    int is_reached = 1;
    if (!PyArg_ParseTuple(arguments, "y#nnnLOn", &packed, &size, &phases, &columns, &rows_max, &after, &from_ns, &most))
        return NULL;
    if (phases < 1 || columns < TOTALS + 2 * phases || columns > COLUMNS_MAX || most < 1 ||
        !block_of_bytes(packed, size, TOTALS + 2 * phases, &block) || !block_is_accepted(&block, rows_max))
        Py_RETURN_NONE;
    Py_ssize_t rows = page_of(&block, after, from_ns, most, &begin, &is_reached);
    if (rows < 0) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    uint64_t *sums = PyMem_Malloc(sizeof(uint64_t) * (size_t)(rows + 1));
    values = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)sizeof(uint64_t) * columns * rows);
    if (values != NULL && sums != NULL && rows)
        block_decode_rows(&block, begin, rows, (uint64_t *)PyByteArray_AsString(values), columns, rows, 0, sums);
    PyMem_Free(sums);
    if (values == NULL || sums == NULL) {
        Py_XDECREF(values);
        return PyErr_NoMemory();
    }
    return Py_BuildValue("(Nni)", values, rows, is_reached);
}

/* (values, counts, used): the rows of attempts beyond a number as columns, of each the first `most`, how many that are, and
 * which columns may have other values than 0, as bits. `wanted` are (parts, number) of each attempt. None where a part is not
 * packed. */
static PyObject *rows_after(PyObject *self, PyObject *arguments)
{
    PyObject *wanted, *values = NULL;
    Py_ssize_t columns, most, total = 0, at = 0;
    uint64_t used = UINT64_C(1) << TOTALS | 1 << START | 1 << END;
    if (!PyArg_ParseTuple(arguments, "O!nn", &PyList_Type, &wanted, &columns, &most))
        return NULL;
    if (columns < TOTALS + 2 || columns > COLUMNS_MAX || most < 0)
        Py_RETURN_NONE;
    PyObject *counts = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizeof(int64_t) * PyList_Size(wanted));
    if (counts == NULL)
        return NULL;
    int64_t *each = (int64_t *)PyBytes_AsString(counts);
    for (int pass = 0; pass < 2; pass++) {
        for (Py_ssize_t i = 0; i < PyList_Size(wanted); i++) {
            PyObject *one = PyList_GetItem(wanted, i), *parts;
            long long number;
            if (!PyTuple_Check(one) || !PyArg_ParseTuple(one, "O!L", &PyList_Type, &parts, &number)) {
                PyErr_SetString(PyExc_TypeError, "want tuples of parts and a number");
                goto failed;
            }
            each[i] = 0;
            for (Py_ssize_t j = 0; j < PyList_Size(parts); j++) {
                PyObject *part = PyList_GetItem(parts, j);
                Py_ssize_t left = rows_beyond(part, number), count = left < most - each[i] ? left : most - each[i];
                if (left < 0) {
                    PyErr_Clear();
                    Py_XDECREF(values);
                    Py_DECREF(counts);
                    Py_RETURN_NONE;
                }
                if (pass && count && (count > total - at ||
                    !decode_left(PyTuple_GetItem(part, 0), (uint64_t *)PyBytes_AsString(values), columns, total, at, left,
                                 count, &used))) {
                    PyErr_SetString(PyExc_ValueError, "packed rows cannot be decoded");
                    goto failed;
                }
                each[i] += count;
                at += pass ? count : 0;
            }
            total += pass ? 0 : each[i];
        }
        if (!pass && (total > COUNT_MAX ||
            (values = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizeof(uint64_t) * columns * total)) == NULL))
            goto failed;
    }
    if (at == total)
        return Py_BuildValue("(NNK)", values, counts, (unsigned long long)used);
failed:
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "packed rows changed");
    Py_XDECREF(values);
    Py_DECREF(counts);
    return NULL;
}

static PyMethodDef functions[] = {
    {"count_rows", count_rows, METH_VARARGS,
     "count_rows(blocks, phases, rows_max): the rows of these step blocks, -1 where check_block would refuse one."},
    {"decode", decode, METH_VARARGS,
     "decode(blocks, values): write the rows of these blocks into a (columns, rows) matrix of int64; returns (number of "
     "the first and the last row, step of the first, least start, greatest end), and whether a row is wrong."},
    {"decode_page", decode_page, METH_VARARGS,
     "decode_page(block, phases, columns, rows_max, after, from_ns, most): see ledger.blocks; None for a block that cannot be "
     "decoded or whose numbers do not ascend."},
    {"rows_after", rows_after, METH_VARARGS,
     "rows_after(wanted, columns, most): see aggregator.column_attempt; None where not all rows are packed."},
    {"known_ranks", known_ranks, METH_VARARGS,
     "known_ranks(body, known, live): see ingest.known_ranks; None for a push that is not plain."},
    {NULL},
};

/* Grows with each change of what a function takes or returns: see compiled. */
enum { REVISION = 6 };

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "goodput.wire._steps", "See _steps.c.", -1, functions,
};

PyMODINIT_FUNC PyInit__steps(void)
{
    static const struct {
        PyObject **into;
        const char *name;
    } names[] = {
        {&name_count, "count"}, {&name_columns, "columns"}, {&name_first, "first"},
        {&name_least, "least"}, {&name_widths, "widths"},   {&name_cells, "cells"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((*names[i].into = PyUnicode_InternFromString(names[i].name)) == NULL)
            return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddIntConstant(made, "REVISION", REVISION) < 0)
        Py_CLEAR(made);
    return made;
}
