/* The extension module: the clock and its phases (_fast.c) and the hooks of automatic instrumentation (_hooks.c). */
#include "_fast.h"

static PyMethodDef functions[] = {
    {"bin_of_ns", goodput_bin_of_ns, METH_O, "The fp16 bin of a duration in ns, as histogram.bin_of_ns."},
    {"set_constants", (PyCFunction)(void (*)(void))goodput_set_constants, METH_VARARGS | METH_KEYWORDS,
     "Take the constants that the hooks share with their Python twins."},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "goodput.sdk.recorder._fast",
    .m_doc = "The hot path of the SDK, compiled; goodput.sdk.recorder.step_clock is the same in Python.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__fast(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && (goodput_add_clock(made) < 0 || goodput_add_hooks(made) < 0))
        Py_CLEAR(made);
    return made;
}
