"""From what a caller wants to what the kernel needs: user, directory, environment, program.

Nothing is started here. What cannot be is told as the API says: a program that is not there is a
result, a directory or user that is not is an error.
"""

# ruff: noqa: PTH110, PTH116, PTH118, PTH119
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from daemon import tree, users
from daemon.spawn import DirectoryError, Program
from daemon.state import encode, login_environment
from sandman.errors import (
    InternalError,
    NotADirectoryPathError,
    PathDeniedError,
    PathNotFoundError,
    SandmanError,
    UnreachableError,
    UserUnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daemon.state import Sandbox
    from sandman.wire import ExecSpec

_PLACES = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELLS = (b"bash", b"sh")


class StartFailedError(Exception):
    """The command did not start, in a way that a shell, too, would tell by its exit code."""

    def __init__(self, exit_code: int, reason: str | None, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.reason = reason
        self.message = message


def plan(spec: ExecSpec, sandbox: Sandbox, tag: str) -> Program:
    """All that is needed to start the command.

    Raises:
        StartFailedError: no such program.
        SandmanError: directory or user at fault.
    """
    cwd = _directory(sandbox.absolute(encode(spec.cwd or "")))
    environment = _environment(spec, sandbox)
    user = _user(spec, sandbox)
    if spec.argv is not None:
        argv = tuple(encode(item) for item in spec.argv)
        paths = _program(argv[0], environment.get(b"PATH"), cwd)
    else:
        argv, paths = _shell(spec, environment, sandbox.environment, cwd)
    environment[tree.TAG] = tag.encode()
    mark, terminal = tree.mark_of(tag), spec.terminal is not None
    return Program(argv, tuple(paths), cwd, environment, user, mark, terminal)


def plan_shell(spec: ExecSpec, sandbox: Sandbox, tag: str, wanted: str | None) -> Program:
    """The same for a shell that stays, its path in place of its arguments.

    Args:
        spec: its directory, environment and user.
        sandbox: where it is started.
        tag: marks its tree.
        wanted: name or path of the shell; None: bash, else sh.

    Raises:
        SandmanError: no such shell; directory or user at fault.
    """
    cwd = _directory(sandbox.absolute(encode(spec.cwd or "")))
    environment = _environment(spec, sandbox)
    user = _user(spec, sandbox)
    names = _SHELLS if wanted is None else (encode(wanted),)
    paths = _shell_paths(names, (environment.get(b"PATH"), sandbox.environment.get(b"PATH")), cwd)
    if not paths:
        raise PathNotFoundError(f"the image has no {wanted or 'bash and no sh'}", field="shell")
    environment[tree.TAG] = tag.encode()
    return Program((paths[0],), (paths[0],), cwd, environment, user, tree.mark_of(tag))


def _directory(path: bytes) -> bytes:
    shown = os.fsdecode(path)
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise PathNotFoundError(f"no such directory: {shown}", field="cwd") from None
    except OSError as error:
        raise PathDeniedError(f"{shown}: {error.strerror}", field="cwd") from None
    if not stat.S_ISDIR(mode):
        raise NotADirectoryPathError(f"not a directory: {shown}", field="cwd")
    return path


def _environment(spec: ExecSpec, sandbox: Sandbox) -> dict[bytes, bytes]:
    environment: dict[bytes, bytes] = {}
    if spec.env_mode == "merge":
        environment.update(sandbox.environment)
        if spec.user is not None:
            environment.update(login_environment(users.find(spec.user)))
    if spec.terminal is not None:
        environment[b"TERM"] = encode(spec.terminal.term)
    environment.update((encode(key), encode(value)) for key, value in spec.env)
    return environment


def _user(spec: ExecSpec, sandbox: Sandbox) -> users.User | None:
    """Whom to switch to; None: the daemon's own user, without a switch."""
    user = sandbox.user if spec.user is None else users.find(spec.user)
    if user is None or (user.uid, user.gid) == (os.geteuid(), os.getegid()):
        return None
    if os.geteuid() not in {0, user.uid}:
        raise UserUnsupportedError(
            f"the sandbox runs as uid {os.geteuid()} and cannot switch to {user.name}", field="user"
        )
    return None if os.geteuid() == user.uid else user


def _shell(
    spec: ExecSpec,
    environment: Mapping[bytes, bytes],
    base: Mapping[bytes, bytes],
    cwd: bytes,
) -> tuple[tuple[bytes, ...], list[bytes]]:
    paths = _shell_paths(_SHELLS, (environment.get(b"PATH"), base.get(b"PATH")), cwd)
    if paths:
        options = (b"-l", b"-c") if spec.login else (b"-c",)
        return (os.path.basename(paths[0]), *options, encode(spec.shell or "")), paths
    raise StartFailedError(127, "not_found", "the image has no bash and no sh: use argv\n")


def _shell_paths(
    names: tuple[bytes, ...], searches: tuple[bytes | None, ...], cwd: bytes
) -> list[bytes]:
    """The first of these names that is somewhere; a name with a slash is a path."""
    for search in (*searches, _PLACES):
        for name in names:
            paths = _candidates(name, b"" if b"/" in name else search, cwd)
            if paths:
                return paths
    return []


def _program(name: bytes, search: bytes | None, cwd: bytes) -> list[bytes]:
    paths = [name] if b"/" in name else _candidates(name, search, cwd)
    if not paths:
        where = "PATH" if search else "the default PATH"
        message = f"{os.fsdecode(name)}: not found in {where}\n"
        raise StartFailedError(127, "not_found", message)
    return paths


def _candidates(name: bytes, search: bytes | None, cwd: bytes) -> list[bytes]:
    """Files of this name on the path, those that anybody may execute first."""
    found: list[tuple[bool, bytes]] = []
    for place in (_PLACES if search is None else search).split(b":"):
        path = os.path.join(cwd, place, name)
        try:
            mode = os.stat(path).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode):
            found.append((not mode & 0o111, path))
    return [path for _, path in sorted(found, key=lambda item: item[0])]


def explain(error: OSError | DirectoryError, program: Program) -> SandmanError | StartFailedError:
    """What the kernel's refusal to start the program means for the caller."""
    if isinstance(error, DirectoryError):
        text = f"{os.fsdecode(program.cwd)}: {error.__cause__}"
        return PathDeniedError(text, field="cwd")
    if error.errno == errno.EPERM and program.user is not None:
        return UserUnsupportedError(
            f"the daemon may not switch to user {program.user.name}: it lacks the capability",
            field="user",
        )
    return _explain_program(error, program)


_NO_PROGRAM = frozenset({errno.EACCES, errno.ENOEXEC, errno.EISDIR, errno.EPERM, errno.ELOOP})
_NO_ROOM = frozenset({errno.E2BIG, errno.EAGAIN, errno.ENOMEM, errno.ETXTBSY})
"""The sandbox's own limits: a shell would say the same and go on."""
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""Of the daemon's, for the command's pipes: no shell would come to this."""


def _explain_program(error: OSError, program: Program) -> SandmanError | StartFailedError:
    name = os.fsdecode(program.argv[0])
    message = f"{name}: {error.strerror}\n"
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        if os.path.exists(os.path.join(program.cwd, program.paths[0])):
            message = f"{name}: its interpreter or loader is not in the image\n"
        return StartFailedError(127, "not_found", message)
    if error.errno in _NO_PROGRAM:
        return StartFailedError(126, "not_executable", message)
    if error.errno in _NO_ROOM:
        return StartFailedError(126, None, message)
    if error.errno in _NO_DESCRIPTOR:
        text = f"{name} did not start: {error.strerror}"
        return UnreachableError(text, cause="sandbox", retry_after=1.0)
    return InternalError(f"{name} did not start: {error}")
