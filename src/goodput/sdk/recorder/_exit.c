/* What is done with the exit status of the process. Python's own exit functions run before the status is passed on:
 * SystemExit is no longer there to be looked at. The GNU C library gives it to functions that on_exit() registers. */
#include "_fast.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN_MAX = 8 };

static struct {
    pid_t process; /* The process that asked for it, no fork of it; 0 once it is done. */
    uint64_t *words;
    size_t ended;
    uint64_t finished, failed;
    int count, inputs[CHILDREN_MAX];
    pid_t children[CHILDREN_MAX];
} at_end;

#ifdef __GLIBC__
static void process_exits(int status, void *unused)
{
    if (at_end.process != getpid())
        return;
    at_end.process = 0;
    if ((status & 0xff) != 0 && at_end.words[at_end.ended] == at_end.finished)
        at_end.words[at_end.ended] = at_end.failed;
    for (int i = 0; i < at_end.count; i++) {
        close(at_end.inputs[i]);
        while (waitpid(at_end.children[i], NULL, 0) < 0 && errno == EINTR)
            ;
    }
}
#endif

/* fail_by_status(fd, bytes, word, finished, failed): if the process exits with another status than 0, replace `finished`
 * by `failed` in a word of the file, of which this keeps a mapping of its own. False where that is not possible. */
PyObject *goodput_fail_by_status(PyObject *module, PyObject *args)
{
#ifdef __GLIBC__
    static int is_registered;
    int fd;
    Py_ssize_t bytes, word;
    unsigned long long finished, failed;
    void *mapped;
    if (!PyArg_ParseTuple(args, "innKK", &fd, &bytes, &word, &finished, &failed))
        return NULL;
    mapped = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        Py_RETURN_FALSE;
    if (!is_registered && on_exit(process_exits, NULL) != 0) {
        munmap(mapped, (size_t)bytes);
        Py_RETURN_FALSE;
    }
    is_registered = 1;
    at_end.process = getpid();
    at_end.words = mapped;
    at_end.ended = (size_t)word;
    at_end.finished = finished;
    at_end.failed = failed;
    at_end.count = 0;
    Py_RETURN_TRUE;
#else
    Py_RETURN_FALSE;
#endif
}

/* wait_at_exit(pid, fd): after that close `fd`, the input of this child process, and wait for the child. False if this
 * process asked for no status, or for too many children. */
PyObject *goodput_wait_at_exit(PyObject *module, PyObject *args)
{
    int fd, child;
    if (!PyArg_ParseTuple(args, "ii", &child, &fd))
        return NULL;
    if (at_end.process != getpid() || at_end.count == CHILDREN_MAX)
        Py_RETURN_FALSE;
    at_end.inputs[at_end.count] = fd;
    at_end.children[at_end.count++] = child;
    Py_RETURN_TRUE;
}
