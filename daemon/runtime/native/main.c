/* The program: CPython's own, with our module built in. */
#include <Python.h>

PyMODINIT_FUNC PyInit__sandman(void);

int
main(int argc, char **argv)
{
    if (PyImport_AppendInittab("_sandman", PyInit__sandman) < 0) {
        return 1;
    }
    return Py_BytesMain(argc, argv);
}
