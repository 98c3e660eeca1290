/* What the daemon needs and Python's standard library does not have.
 *
 * A static binary has no dlopen, hence no ctypes: it has to be compiled in. Kept
 * small, because every line here runs as PID 1 beside hostile code:
 *
 *   start(…), claim(pid), is_starting(pid), starts()    start a program: start.c
 *   Sha256       sha256.c
 *   set_fs_user(…)  as whom a thread works on files: fsuser.c
 *   prctl(option, arg2=0, arg3=0, arg4=0, arg5=0) -> int
 *       any prctl whose arguments are numbers: PR_SET_DUMPABLE,
 *       PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS ...
 *       The ones that take or fill a pointer are refused by name below, so
 *       that a wrong number cannot become a write to memory.
 *   set_name(name: bytes) -> None
 *       PR_SET_NAME, what `ps` and /proc/PID/comm show; the kernel keeps 15 bytes.
 */
#include "native.h"

#include <sys/prctl.h>

static int
is_numeric_option(int option)
{
    switch (option) {
    case PR_GET_DUMPABLE:
    case PR_SET_DUMPABLE:
    case PR_SET_CHILD_SUBREAPER:
    case PR_SET_PDEATHSIG:
    case PR_GET_NO_NEW_PRIVS:
    case PR_SET_NO_NEW_PRIVS:
        return 1;
    default:
        return 0;
    }
}

static PyObject *
sandman_prctl(PyObject *Py_UNUSED(module), PyObject *args)
{
    int option;
    unsigned long arg[4] = {0, 0, 0, 0};

    if (!PyArg_ParseTuple(args, "i|kkkk:prctl", &option, &arg[0], &arg[1], &arg[2], &arg[3])) {
        return NULL;
    }
    if (!is_numeric_option(option)) {
        return PyErr_Format(PyExc_ValueError, "prctl option %d is not offered", option);
    }
    int result = prctl(option, arg[0], arg[1], arg[2], arg[3]);
    if (result < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromLong(result);
}

static PyObject *
sandman_set_name(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *name;

    if (!PyArg_ParseTuple(args, "y:set_name", &name)) {
        return NULL;
    }
    if (prctl(PR_SET_NAME, name, 0, 0, 0) < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static int
add_constants(PyObject *module)
{
#define ADD(name)                                          \
    if (PyModule_AddIntConstant(module, #name, name) < 0) { \
        return -1;                                         \
    }
    ADD(PR_GET_DUMPABLE)
    ADD(PR_SET_DUMPABLE)
    ADD(PR_SET_CHILD_SUBREAPER)
    ADD(PR_SET_PDEATHSIG)
    ADD(PR_GET_NO_NEW_PRIVS)
    ADD(PR_SET_NO_NEW_PRIVS)
#undef ADD
    return sandman_add_sha256(module);
}

static PyMethodDef methods[] = {
    {"prctl", sandman_prctl, METH_VARARGS, NULL},
    {"set_name", sandman_set_name, METH_VARARGS, NULL},
    {"start", sandman_start, METH_VARARGS, NULL},
    {"claim", sandman_claim, METH_O, NULL},
    {"is_starting", sandman_is_starting, METH_O, NULL},
    {"starts", sandman_starts, METH_NOARGS, NULL},
    {"set_fs_user", sandman_set_fs_user, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_constants},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_sandman",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__sandman(void)
{
    return PyModuleDef_Init(&definition);
}
