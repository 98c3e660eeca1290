/* The user as whom one thread works on files.
 *
 * A daemon that runs as root acts for callers and for a sandbox's user. Owner
 * changes afterwards would be too late: by then a link has been followed and a
 * directory entered with root's rights. Linux keeps an identity for the file
 * system in each thread, and takes root's rights over files (CAP_DAC_OVERRIDE,
 * CAP_FOWNER, CAP_CHOWN and their like) from the effective set for as long as
 * that identity is not root's.
 *
 *   set_fs_user(uid: int, gid: int, groups: Sequence[int] | None) -> None
 *       For the calling thread alone; None leaves its groups as they are.
 *       OSError when the kernel refuses; the thread may have changed in part by
 *       then, and its caller sets it back.
 *
 * By raw system calls: libc's setgroups() is for all threads of the process. A
 * kernel that has no such identity, as gVisor's, gets the effective one changed
 * instead, which there counts for files as well; the real and the saved ones
 * stay root's, so that nobody of that user may send signals or trace.
 */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define MAX_GROUPS 65536 /* the kernel's NGROUPS_MAX */
#define NOBODY ((unsigned)-1) /* changes nothing; the call answers who it is now */

static int
to_id(PyObject *value, unsigned *id)
{
    unsigned long number = PyLong_AsUnsignedLong(value);

    if (number == (unsigned long)-1 && PyErr_Occurred()) {
        return -1;
    }
    if (number >= NOBODY) {
        PyErr_SetString(PyExc_ValueError, "not an id of a user or group");
        return -1;
    }
    *id = (unsigned)number;
    return 0;
}

static int
set_groups(PyObject *sequence)
{
    PyObject *items = PySequence_Fast(sequence, "groups must be a sequence");
    gid_t *list = NULL;
    int result = -1;

    if (items == NULL) {
        return -1;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    if (count > MAX_GROUPS) {
        PyErr_SetString(PyExc_ValueError, "too many groups");
        goto done;
    }
    list = PyMem_New(gid_t, count + 1);
    if (list == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (to_id(PySequence_Fast_GET_ITEM(items, i), &list[i]) < 0) {
            goto done;
        }
    }
    if (syscall(SYS_setgroups, (int)count, list) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        goto done;
    }
    result = 0;
done:
    PyMem_Free(list);
    Py_DECREF(items);
    return result;
}

/* `instead`: setresuid or setresgid, for kernels that do not know the call. */
static int
set_id(long number, long instead, unsigned id)
{
    /* Such a call never fails: it answers who the thread was before, changed or not. */
    syscall(number, id);
    errno = 0;
    long now = syscall(number, NOBODY);
    if (now == -1 && errno == ENOSYS) {
        if (syscall(instead, NOBODY, id, NOBODY) == 0) {
            return 0;
        }
    } else if ((unsigned)now == id) {
        return 0;
    } else {
        errno = EPERM;
    }
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

static int
set_user(unsigned uid)
{
    return set_id(SYS_setfsuid, SYS_setresuid, uid);
}

PyObject *
sandman_set_fs_user(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *user, *group, *groups;
    unsigned uid = 0, gid = 0;

    if (!PyArg_ParseTuple(args, "OOO:set_fs_user", &user, &group, &groups)) {
        return NULL;
    }
    if (to_id(user, &uid) < 0 || to_id(group, &gid) < 0) {
        return NULL;
    }
    /* Who becomes root again needs that for the rest; who becomes another needs root for it. */
    if (uid == 0 && set_user(uid) < 0) {
        return NULL;
    }
    if (groups != Py_None && set_groups(groups) < 0) {
        return NULL;
    }
    if (set_id(SYS_setfsgid, SYS_setresgid, gid) < 0) {
        return NULL;
    }
    if (uid != 0 && set_user(uid) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}
