/* Starts a program: everything that lies between the daemon and another program, in one place.
 *
 *   start(paths, argv, environment, (stdin, stdout, stderr), cwd,
 *         (uid, gid, groups) or None, terminal, mark, oom_score, clear_refs, keeps_cwd=False)
 *       -> (pid, stage, errno, peak_kib)
 *
 * `environment` is a dict of bytes, `oom_score` and `clear_refs` are -1 for none; the latter is a descriptor
 * of /proc/self/clear_refs: the new program inherits the daemon's peak of memory, which is reset before.
 *
 * By clone(CLONE_VM | CLONE_VFORK), which costs the same whatever the daemon's size: the child runs on
 * the daemon's memory, on a stack of its own, while the calling thread waits, until it is another
 * program. Between the two it may do nothing but system calls: no allocation, no lock, none of libc's
 * functions that set something for all threads (setuid, setgroups, setrlimit), hence the bare calls.
 *
 * In this order, since each needs or bars another:
 *
 *   the mark: a limit that the kernel does not use, see daemon/tree.py
 *   fewer pending signals than the daemon may have, see RESERVE
 *   default actions for all signals, whatever the daemon ignores or was told to ignore
 *   a session of its own
 *   its place in the order of those that are killed for want of memory
 *   0, 1 and 2; the terminal on 0 as the session's own; nothing else open
 *   with `keeps_cwd` the directory, as the daemon's user, should it not do as the other
 *   groups, group, user
 *   the directory, as the user
 *   no signal blocked
 *   the first of `paths` that can be executed, as execvp does
 *
 * A child that fails on the way is reaped here. Any other, also one that somebody kills on the way, may
 * end before the caller knows its number: until the caller has said so by claim(pid) -> None,
 * is_starting(pid) -> bool tells whoever waits for all children to leave it be.
 * starts() -> list of them all: one that somebody stops on the way stops the calling thread with it,
 * until daemon/init.py sees to it.
 */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A sender's identity is kept in memory that counts against RLIMIT_SIGPENDING, which all processes of a
 * user share. When it is used up the kernel still delivers a forged SIGTERM, without the sender: that
 * looks as if it came from outside the sandbox. So commands may use up all but this much. */
#define RESERVE 64
#define STACK_BYTES 16384
#define KERNEL_SIGNALS 64

/* Where a start failed; known to daemon/spawn.py. */
enum stage { PROGRAM, DIRECTORY, USER, TERMINAL, DESCRIPTORS };

struct job {
    char **paths;
    char **argv;
    char **environment;
    const char *cwd;
    int keeps_cwd;
    int fds[3];
    int terminal;
    int switches;
    unsigned int uid;
    unsigned int gid;
    Py_ssize_t group_count;
    unsigned int *groups;
    unsigned long long mark;
    volatile int *place;
    int clear_refs;
    char oom_score[16]; /* as the kernel reads it; empty: the daemon's own */
    /* The child's words. */
    int stage;
    int error;
    int is_offered;
    long peak_kib;
};

/* Children between their start and their claim. Places are given out and taken back with the
 * interpreter's lock held. */
#define PLACES 1024
#define TAKEN (-1)
static volatile int starting[PLACES];

/* The kernel's own form; libc's differ. */
struct limit {
    uint64_t soft;
    uint64_t hard;
};

static void
reset_signals(void)
{
    const unsigned long action[4] = {0}; /* SIG_DFL, no flags, no mask */
    for (int number = 1; number <= KERNEL_SIGNALS; number++) {
        syscall(SYS_rt_sigaction, number, action, NULL, KERNEL_SIGNALS / 8);
    }
}

static void
set_limits(const struct job *job)
{
    struct limit limit;
    if (job->mark) {
        limit.soft = limit.hard = job->mark;
        syscall(SYS_prlimit64, 0, RLIMIT_LOCKS, &limit, NULL);
    }
    if (syscall(SYS_prlimit64, 0, RLIMIT_SIGPENDING, NULL, &limit) == 0 &&
        limit.soft > 2 * RESERVE && limit.soft != UINT64_MAX) {
        limit.soft -= RESERVE;
        limit.hard = limit.soft;
        syscall(SYS_prlimit64, 0, RLIMIT_SIGPENDING, &limit, NULL);
    }
}

static int
set_descriptors(struct job *job)
{
    job->stage = DESCRIPTORS;
    for (int number = 0; number < 3; number++) {
        if (syscall(SYS_dup3, job->fds[number], number, 0) < 0) {
            return -1;
        }
    }
    job->stage = TERMINAL;
    if (job->terminal && syscall(SYS_ioctl, 0, TIOCSCTTY, 0) < 0) {
        return -1;
    }
    /* All of the daemon's close at exec anyhow: see `kernel.hide_descriptors`. */
    syscall(SYS_close_range, 3, ~0U, 0);
    return 0;
}

static int
set_directory(struct job *job, int is_there)
{
    job->stage = DIRECTORY;
    return syscall(SYS_chdir, job->cwd) < 0 && !is_there ? -1 : 0;
}

static int
set_user(struct job *job)
{
    job->stage = USER;
    if (!job->switches) {
        return 0;
    }
    if (syscall(SYS_setgroups, job->group_count, job->groups) < 0 ||
        syscall(SYS_setresgid, job->gid, job->gid, job->gid) < 0 ||
        syscall(SYS_setresuid, job->uid, job->uid, job->uid) < 0) {
        return -1;
    }
    /* A switch of users may make the memory, which is still the daemon's, dumpable: fs.suid_dumpable. */
    syscall(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
    return 0;
}

/* The first failure counts, as with execvp: a later directory of PATH may not even exist. */
static void
execute(struct job *job)
{
    int first = 0;
    job->stage = PROGRAM;
    for (char **path = job->paths; *path != NULL; path++) {
        syscall(SYS_execve, *path, job->argv, job->environment);
        if (errno != ENOENT && errno != ENOTDIR && errno != EACCES && errno != EPERM) {
            first = errno;
            break;
        }
        if (!first) {
            first = errno;
        }
    }
    errno = first ? first : ENOENT;
}

/* To make a process a likelier victim of the kernel needs no capability. The child does it, so that no
 * child of its own can come before; but the files of a process that is not dumpable are root's, so for
 * another user's daemon its parent has to, once it is another program. */
static void
offer_to_oom_killer(struct job *job, const char *path)
{
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    if (file >= 0) {
        job->is_offered = syscall(SYS_write, file, job->oom_score, strlen(job->oom_score)) > 0;
        syscall(SYS_close, file);
    }
}

static int
child(void *argument)
{
    struct job *job = argument;
    const uint64_t nothing = 0;
    struct rusage usage;

    set_limits(job); /* first: who has a session of its own has its mark */
    reset_signals();
    syscall(SYS_setsid);
    if (*job->oom_score) {
        offer_to_oom_killer(job, "/proc/self/oom_score_adj");
    }
    if (set_descriptors(job) < 0) {
        goto failed;
    }
    int is_there = job->keeps_cwd && syscall(SYS_chdir, job->cwd) == 0;
    if (set_user(job) < 0 || set_directory(job, is_there) < 0) {
        goto failed;
    }
    if (syscall(SYS_getrusage, RUSAGE_SELF, &usage) == 0) {
        job->peak_kib = usage.ru_maxrss;
    }
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &nothing, NULL, KERNEL_SIGNALS / 8);
    execute(job);
failed:
    job->error = errno;
    syscall(SYS_exit_group, 127);
    return 127;
}

static int
run(struct job *job)
{
    char path[64];
    char stack[STACK_BYTES] __attribute__((aligned(16)));
    const uint64_t all = UINT64_MAX;
    uint64_t before = 0;

    /* A handler of the daemon's must not run in the child, on the daemon's memory. */
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, KERNEL_SIGNALS / 8);
    if (job->clear_refs >= 0 && write(job->clear_refs, "5", 1) < 0) {
        /* Then the peak is what it is. */
    }
    /* The kernel writes the number before the child runs, so before anybody can kill it. */
    int pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD,
                    job, (int *)job->place, NULL, NULL);
    int error = errno;
    if (pid > 0 && job->error) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
        *job->place = TAKEN; /* the number may be another's from now on */
    } else if (pid > 0 && *job->oom_score && !job->is_offered) {
        snprintf(path, sizeof path, "/proc/%d/oom_score_adj", pid);
        offer_to_oom_killer(job, path);
    }
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, KERNEL_SIGNALS / 8);
    errno = error;
    return pid;
}

static volatile int *
take_place(void)
{
    for (int index = 0; index < PLACES; index++) {
        if (!starting[index]) {
            starting[index] = TAKEN;
            return &starting[index];
        }
    }
    errno = EAGAIN;
    PyErr_SetFromErrno(PyExc_OSError);
    return NULL;
}

static volatile int *
find_place(PyObject *number)
{
    long pid = PyLong_AsLong(number);
    for (int index = 0; index < PLACES && pid > 0; index++) {
        if (starting[index] == pid) {
            return &starting[index];
        }
    }
    return NULL;
}

PyObject *
sandman_claim(PyObject *Py_UNUSED(module), PyObject *number)
{
    volatile int *place = find_place(number);
    if (place != NULL) {
        *place = 0;
    } else if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
sandman_is_starting(PyObject *Py_UNUSED(module), PyObject *number)
{
    volatile int *place = find_place(number);
    if (place == NULL && PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(place != NULL);
}

PyObject *
sandman_starts(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing))
{
    PyObject *found = PyList_New(0);
    for (int index = 0; index < PLACES && found != NULL; index++) {
        int pid = starting[index];
        PyObject *number = pid > 0 ? PyLong_FromLong(pid) : NULL;
        if (pid > 0 && (number == NULL || PyList_Append(found, number) < 0)) {
            Py_CLEAR(found);
        }
        Py_XDECREF(number);
    }
    return found;
}

/* The texts of a tuple of bytes, which has to outlive the result. */
static char **
texts(PyObject *tuple)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    char **found = PyMem_Calloc((size_t)count + 1, sizeof(char *));
    if (found == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        /* Refuses a NUL within. */
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(tuple, index), &found[index], NULL) < 0) {
            PyMem_Free(found);
            return NULL;
        }
    }
    return found;
}

/* `NAME=value` for each item of a dict, all in one piece of memory. */
static char **
settings(PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t position = 0, index = 0;
    size_t size = ((size_t)PyDict_GET_SIZE(dict) + 1) * sizeof(char *);
    size_t offset = size;

    while (PyDict_Next(dict, &position, &key, &value)) {
        char *text;
        if (PyBytes_AsStringAndSize(key, &text, NULL) < 0 ||
            PyBytes_AsStringAndSize(value, &text, NULL) < 0) {
            return NULL;
        }
        size += (size_t)PyBytes_GET_SIZE(key) + (size_t)PyBytes_GET_SIZE(value) + 2;
    }
    char **found = PyMem_Calloc(1, size);
    if (found == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    position = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
        char *text = (char *)found + offset;
        size_t name = (size_t)PyBytes_GET_SIZE(key), rest = (size_t)PyBytes_GET_SIZE(value);
        memcpy(text, PyBytes_AS_STRING(key), name);
        text[name] = '=';
        memcpy(text + name + 1, PyBytes_AS_STRING(value), rest);
        found[index++] = text;
        offset += name + rest + 2;
    }
    return found;
}

static int
take_user(struct job *job, PyObject *user)
{
    PyObject *groups;

    if (user == Py_None) {
        return 0;
    }
    if (!PyArg_ParseTuple(user, "IIO!:user", &job->uid, &job->gid, &PyTuple_Type, &groups)) {
        return -1;
    }
    job->switches = 1;
    job->group_count = PyTuple_GET_SIZE(groups);
    job->groups = PyMem_Calloc((size_t)job->group_count + 1, sizeof(unsigned int));
    if (job->groups == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t index = 0; index < job->group_count; index++) {
        unsigned long group = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(groups, index));
        if (PyErr_Occurred()) {
            return -1;
        }
        job->groups[index] = (unsigned int)group;
    }
    return 0;
}

PyObject *
sandman_start(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *paths, *argv, *environment, *user, *result = NULL;
    struct job job = {0};
    int oom_score, pid;

    if (!PyArg_ParseTuple(args, "O!O!O!(iii)yOpKii|p:start", &PyTuple_Type, &paths, &PyTuple_Type, &argv,
                          &PyDict_Type, &environment, &job.fds[0], &job.fds[1], &job.fds[2],
                          &job.cwd, &user, &job.terminal, &job.mark, &oom_score,
                          &job.clear_refs, &job.keeps_cwd)) {
        return NULL;
    }
    if (oom_score >= 0) {
        snprintf(job.oom_score, sizeof job.oom_score, "%d", oom_score);
    }
    job.paths = texts(paths);
    job.argv = job.paths ? texts(argv) : NULL;
    job.environment = job.argv ? settings(environment) : NULL;
    if (job.environment != NULL && take_user(&job, user) == 0 && (job.place = take_place()) != NULL) {
        Py_BEGIN_ALLOW_THREADS
        pid = run(&job);
        Py_END_ALLOW_THREADS
        if (pid < 0 || job.error) {
            *job.place = 0;
        }
        if (pid < 0) {
            PyErr_SetFromErrno(PyExc_OSError);
        } else {
            result = Py_BuildValue("(iiil)", pid, job.stage, job.error, job.peak_kib);
            if (result == NULL && !job.error) {
                /* Nobody will know of it. */
                kill(pid, SIGKILL);
                *job.place = 0;
            }
        }
    }
    PyMem_Free(job.groups);
    PyMem_Free(job.environment);
    PyMem_Free(job.argv);
    PyMem_Free(job.paths);
    return result;
}
