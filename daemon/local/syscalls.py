"""System calls of local mode that Python 3.11 has no names for: namespaces, mounts, capabilities.

By ctypes, which the runtime's own interpreter has not got: nothing but `confine` and `rootfs` imports this.
"""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38

_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
_SYS_MOUNT_SETATTR = 442  # the same on all architectures, as all since Linux 5.1 are
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY = 1
_CAP_VERSION = 0x20080522
_LAST_CAP = 63

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave these namespaces for new ones; of pids the next child will be in the new one.

    Raises:
        OSError: the kernel or its administrator does not allow it.
    """
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2).

    Raises:
        OSError: it was refused; the text names the target.
    """
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        os.fsencode(data) or None,
    )
    _check(result, f"mount {kind or source} at {target}")


def detach(target: str) -> None:
    """Take a mount away, with all that is mounted below it.

    Raises:
        OSError: it was refused.
    """
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def make_read_only(target: str) -> None:
    """A mount and all below it, whatever they are.

    Raises:
        OSError: it was refused (Linux before 5.12 has no such call).
    """
    wanted = struct.pack(
        "=4Q", _MOUNT_ATTR_RDONLY, 0, 0, 0
    )  # set, clear, propagation, user namespace
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.c_char_p(wanted),
        ctypes.c_size_t(len(wanted)),
    )
    _check(result, f"make {target} read-only")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root; what was it is then at `old`.

    Raises:
        OSError: it was refused, or this architecture is not known here.
    """
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"pivot_root is not known on {os.uname().machine}")
    result = _libc.syscall(
        ctypes.c_long(number),
        ctypes.c_char_p(os.fsencode(new)),
        ctypes.c_char_p(os.fsencode(old)),
    )
    _check(result, "pivot_root")


def prctl(option: int, value: int) -> None:
    """prctl(2) with one value.

    Raises:
        OSError: it was refused.
    """
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), "prctl")


def keep_capabilities(kept: frozenset[int]) -> None:
    """Give up all others, for this process and all that it will start.

    Raises:
        OSError: it was refused.
    """
    for number in range(_LAST_CAP + 1):
        if number not in kept:
            try:
                prctl(PR_CAPBSET_DROP, number)
            except OSError:
                break  # the kernel knows no more
    words = [sum(1 << n % 32 for n in kept if n // 32 == word) for word in (0, 1)]
    header = struct.pack("=Ii", _CAP_VERSION, 0)
    # For each word: effective, permitted, inheritable.
    data = struct.pack("=6I", words[0], words[0], 0, words[1], words[1], 0)
    _check(_libc.capset(ctypes.create_string_buffer(header), ctypes.c_char_p(data)), "capset")
