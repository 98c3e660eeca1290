/* What the sources of our module share. */
#ifndef SANDMAN_NATIVE_H
#define SANDMAN_NATIVE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* start.c */
PyObject *sandman_start(PyObject *module, PyObject *args);
PyObject *sandman_claim(PyObject *module, PyObject *number);
PyObject *sandman_is_starting(PyObject *module, PyObject *number);
PyObject *sandman_starts(PyObject *module, PyObject *nothing);

/* fsuser.c */
PyObject *sandman_set_fs_user(PyObject *module, PyObject *args);

/* sha256.c: 0, or -1 with an exception; the type is absent where the processor cannot do it. */
int sandman_add_sha256(PyObject *module);

#endif
