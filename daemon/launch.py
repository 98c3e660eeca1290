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

from daemon import kernel, tree, users
from daemon.spawn import DirectoryError, Program, StageError, UserError
from daemon.state import encode, login_environment
from sandman.errors import (
    InternalError,
    NotADirectoryPathError,
    PathNotFoundError,
    SandmanError,
    UnreachableError,
    UserUnsupportedError,
)
from sandman.records import TYPE_CHECKING
from sandman.wire import BUSY, NO_ROOM, NOT_EXECUTABLE, NOT_FOUND, TOO_LONG

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daemon.state import Sandbox
    from sandman.wire import ExecSpec

_PLACES = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELLS = (b"bash", b"sh")
_SHOWN = 200
"""Characters of a name in a message: it may be as long as a request."""


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
    user = _user(spec, sandbox)
    cwd = _directory(sandbox.absolute(encode(spec.cwd or "")), user)
    environment = _environment(spec, sandbox)
    if spec.argv is not None:
        argv = tuple(encode(item) for item in spec.argv)
        paths = _program(argv[0], environment.get(b"PATH"), cwd)
    else:
        argv, paths = _shell(spec, environment, sandbox.environment, cwd)
    environment[tree.TAG] = tag.encode()
    mark, terminal = tree.mark_of(tag), spec.terminal is not None
    return Program(
        argv, tuple(paths), cwd, environment, user, mark, terminal, keeps_cwd=not spec.cwd
    )


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
    user = _user(spec, sandbox)
    cwd = _directory(sandbox.absolute(encode(spec.cwd or "")), user)
    environment = _environment(spec, sandbox)
    names = _SHELLS if wanted is None else (encode(wanted),)
    paths = _shell_paths(names, (environment.get(b"PATH"), sandbox.environment.get(b"PATH")), cwd)
    if not paths:
        raise PathNotFoundError(f"the image has no {wanted or 'bash and no sh'}", field="shell")
    environment[tree.TAG] = tag.encode()
    mark = tree.mark_of(tag)
    return Program((paths[0],), (paths[0],), cwd, environment, user, mark, keeps_cwd=not spec.cwd)


def _directory(path: bytes, user: users.User | None) -> bytes:
    """The path, if it may be a directory: as the user it is entered in the end, whose rights count."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        text = f"no such directory: {os.fsdecode(path)}"
        raise PathNotFoundError(text, field="cwd", facts=kernel.name_of(error)) from None
    except OSError as error:
        if user is None or error.errno != errno.EACCES:
            raise _no_directory(error, path) from None
        return path  # root without its capabilities may see less than who it becomes
    if not stat.S_ISDIR(mode):
        text = f"not a directory: {os.fsdecode(path)}"
        raise NotADirectoryPathError(text, field="cwd", facts={"errno": "ENOTDIR"})
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
    raise StartFailedError(127, NOT_FOUND, "the image has no bash and no sh: use argv\n")


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
        message = f"{shown(os.fsdecode(name))}: not found in {where}\n"
        raise StartFailedError(127, NOT_FOUND, message)
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


def explain(error: OSError | StageError, program: Program) -> SandmanError | StartFailedError:
    """What the kernel's refusal to start the program means for the caller."""
    if isinstance(error, DirectoryError):
        return _no_directory(error.reason, program.cwd)
    if isinstance(error, UserError) and program.user is not None:
        return UserUnsupportedError(
            f"the daemon may not switch to user {program.user.name}: it lacks the capability",
            field="user",
        )
    if isinstance(error, StageError):
        return InternalError(f"{_name(program)} did not start: {error.reason}")
    return _explain_program(error, program)


def _no_directory(error: OSError, path: bytes) -> SandmanError:
    from daemon.files import translate  # noqa: PLC0415 - not needed at the start

    found = translate(error, path)
    found.field = "cwd"
    return found


_NO_ROOM = frozenset({errno.EAGAIN, errno.ENOMEM})
"""The sandbox's own limits: a shell would say the same and go on."""
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""Of the daemon's, for the command's pipes: no shell would come to this."""


def _explain_program(error: OSError, program: Program) -> SandmanError | StartFailedError:
    name = _name(program)
    message = f"{name}: {error.strerror}"
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        if os.path.exists(os.path.join(program.cwd, program.paths[0])):
            message = f"{name}: its interpreter or loader is not in the image"
        return StartFailedError(127, NOT_FOUND, f"{message}\n")
    # gVisor's kernel says of one string that is too long what others say of a path.
    if error.errno == errno.E2BIG or (error.errno == errno.ENAMETOOLONG and _has_long(program)):
        return StartFailedError(126, TOO_LONG, f"{message}: {what_is_too_long(program)}\n")
    if error.errno in _NO_ROOM:
        return StartFailedError(126, NO_ROOM, f"{message}\n")
    if error.errno == errno.ETXTBSY:
        return StartFailedError(126, BUSY, f"{message}: something has it open for writing\n")
    if error.errno in _NO_DESCRIPTOR:
        text = f"{name} did not start: {error.strerror}"
        return UnreachableError(text, cause="sandbox", retry_after=1.0)
    # Whatever else the kernel says is of the file, its interpreter, or the file system that they are in.
    return StartFailedError(126, NOT_EXECUTABLE, f"{message}\n")


def _name(program: Program) -> str:
    return shown(os.fsdecode(program.argv[0]))


def shown(text: str) -> str:
    """The text, short enough for a person to read what else is said."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _has_long(program: Program) -> bool:
    """Whether one argument or variable is longer than the kernel takes."""
    sizes = [len(text) for text in program.argv]
    sizes += [len(key) + len(value) + 1 for key, value in program.environment.items()]
    return max(sizes) > kernel.most_of_one_string()


def what_is_too_long(program: Program) -> str:
    """Which of the arguments and variables the kernel does not take (execve(2), E2BIG)."""
    most = kernel.most_of_one_string()
    advice = f"Linux takes {most} bytes in one: give more as stdin or in a file"
    for index, text in enumerate(program.argv):
        if len(text) > most:
            return f"argument {index} has {len(text)} bytes; {advice}"
    total = sum(len(text) + 1 for text in program.argv)
    for key, value in program.environment.items():
        size = len(key) + len(value) + 1
        if size > most:
            name = shown(os.fsdecode(key))
            return f"variable {name} has {size} bytes with its name; {advice}"
        total += size + 1
    return f"arguments and environment have {total} bytes together; a quarter of the stack's limit is for them"
