"""What the commands of a hollow daemon come to. Pure: a specification in, output and exit code out."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from daemon.launch import StartFailedError
from sandman import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandman.wire import ExecSpec

    Read = Callable[[str], bytes | None]

MOST_BYTES = 16 * 1024 * 1024
"""Of one output: all sandboxes share this process's memory."""
_BETWEEN: dict[str, Callable[[int], bool]] = {
    ";": lambda code: True,
    "&&": lambda code: code == 0,
    "||": lambda code: code != 0,
}


class Answer(NamedTuple):
    """What a command wrote, how it ended, and after how many seconds."""

    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float = 0.0


def answer(spec: ExecSpec, read: Read) -> Answer:
    """What this command does.

    Args:
        spec: the command.
        read: a file's content; None: there is none.

    Raises:
        StartFailedError: no such program.
    """
    if spec.shell is not None:
        return _shell(spec.shell, spec, read)
    return _program(spec.argv or (), spec, read)


def _shell(line: str, spec: ExecSpec, read: Read) -> Answer:
    """Simple commands with `;`, `&&` and `||` between; no pipes, no variables, no redirection."""
    lexer = shlex.shlex(line.replace("\n", ";"), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    whole, words, wanted = Answer(), list[str](), True
    for word in [*iter(lexer.get_token, None), ";"]:
        if word not in _BETWEEN:
            words.append(word)
            continue
        if words and wanted:
            whole = _after(whole, _of_shell(words, spec, read))
            if words[0] == "exit":
                return whole
        wanted, words = _BETWEEN[word](whole.exit_code), []
    return whole


def _after(first: Answer, second: Answer) -> Answer:
    return Answer(
        second.exit_code,
        first.stdout + second.stdout,
        first.stderr + second.stderr,
        first.seconds + second.seconds,
    )


def _of_shell(words: Sequence[str], spec: ExecSpec, read: Read) -> Answer:
    """As a shell tells of what it cannot find: by its exit code, having started itself."""
    if words[0] == "exit":
        return Answer(int(words[1]) if len(words) > 1 else 0)
    try:
        return _program(words, spec, read)
    except StartFailedError as error:
        return Answer(error.exit_code, stderr=error.message.encode())


def _program(argv: Sequence[str], spec: ExecSpec, read: Read) -> Answer:
    name, *rest = argv
    found: Answer | None = None
    match name.rpartition("/")[2], rest:
        case (("true" | ":"), _):
            found = Answer()
        case "false", _:
            found = Answer(1)
        case "echo", _:
            found = Answer(stdout=f"{' '.join(rest)}\n".encode())
        case "sleep", [seconds]:
            found = Answer(seconds=float(seconds))
        case "cat", []:
            found = Answer(stdout=spec.stdin or b"")
        case "cat", _:
            found = _cat(rest, read)
        case "head", ["-c", count, "/dev/zero"]:
            found = Answer(stdout=bytes(min(int(count), MOST_BYTES)))
        case (("sh" | "bash"), [("-c" | "-lc"), line]):
            found = _shell(line, spec, read)
    if found is None:
        raise StartFailedError(127, wire.NOT_FOUND, f"{name}: not found\n")
    return found


def _cat(paths: Sequence[str], read: Read) -> Answer:
    found = {path: read(path) for path in paths}
    lacking = [f"cat: {path}: No such file or directory\n" for path in paths if found[path] is None]
    whole = b"".join(data for data in found.values() if data is not None)
    return Answer(1 if lacking else 0, whole, "".join(lacking).encode())
