"""Commands in a sandbox: `exec`, `processes` and `sessions`, as `sandman.wire`, `handles` and `sessions` have them."""

from __future__ import annotations

from typing import Unpack

from gateway.openapi import problems
from gateway.openapi import schema as s
from gateway.openapi.operation import NOTHING, Answer, More, Operation, Parameter, told
from sandman import handles, names, sessions, terminal, wire

_AT = "/v1/sandboxes/{id}"
ID = r"^[A-Za-z0-9._-]{1,64}$"
"""As `names.is_exec_id`, which refuses dots alone besides."""
USER: s.Schema = {"type": ["string", "integer"], "description": "name or uid"}

COMMAND = s.either(s.body(
    {
        "argv": s.listed(s.text(), "program and arguments", minItems=1),
        "shell": s.text("or a string for the image's shell; exactly one of the two"),
        "cwd": s.text("working directory"),
        "env": s.texts_by_name("variables"),
        "env_mode": s.one_of(("merge", "replace")),
        "user": USER,
        "stdin": s.text("all of its input"),
        "stdin_b64": s.text("the same as base64"),
        "timeout_s": s.seconds(),
        "merge_stderr": s.flag(),
        "output_limit": s.whole("bytes kept of each stream", 0, wire.MAX_OUTPUT_LIMIT),
        "login": s.flag("with `shell`: a login shell"),
        "exec_id": s.text("the caller's id of this command", pattern=ID),
        "detached": s.flag("no reader holds it up"),
        "attached_grace_s": s.seconds(
            "it lives on without a reader", wire.MAX_ATTACHED_GRACE_S, zero=True
        ),
        "stdin_open": s.flag("input may follow"),
        "terminal": s.body({
            "rows": s.whole("", 1, terminal.MAX_SIZE),
            "cols": s.whole("", 1, terminal.MAX_SIZE),
            "term": s.text("its kind"),
        }),
    },
), "argv", "shell")  # fmt: skip

RESULT = s.answer(
    {
        "exit_code": s.whole("128 + n when killed by signal n", 0, 255),
        "signal": s.maybe(s.whole()),
        "timed_out": s.flag(),
        "abandoned": s.flag("ended since nobody read it"),
        "start_error": s.maybe(s.one_of(wire.START_ERRORS, "why it did not start")),
        "stdout_bytes": s.whole("all that was written"),
        "stderr_bytes": s.whole(),
        "stdout_truncated": s.flag("the middle is left out"),
        "stderr_truncated": s.flag(),
        "oom_killed": s.maybe(s.flag()),
        "wall_s": s.number(),
        "cpu_s": s.maybe(s.number()),
        "peak_memory_bytes": s.maybe(s.whole()),
        "throttled_s": s.maybe(s.number()),
        "exec_id": s.text(),
        "boot_id": s.text(),
    },
    {
        "stdout": s.text("absent in lists"),
        "stderr": s.text(),
        "stdout_b64": s.text("exactly, where it is no UTF-8"),
        "stderr_b64": s.text(),
    },
)

PROCESS = s.answer(
    {
        "exec_id": s.text(),
        "state": s.one_of((handles.RUNNING, handles.ENDED)),
        "started_at": s.text(),
        "detached": s.flag(),
        "terminal": s.flag(),
        "stdin_bytes": s.whole(),
        "stdout_bytes": s.whole(),
        "stderr_bytes": s.whole(),
    },
    {"result": s.ref("Result")},
)

SESSION_ASKED = s.body({
    "name": s.text(pattern=ID),
    "shell": s.text("name or path", minLength=1),
    "cwd": s.text(),
    "env": s.texts_by_name(),
    "user": USER,
    "rc": s.flag("whether bash reads its start-up files"),
    "rows": s.whole("", 1, 65535),
    "columns": s.whole("", 1, 65535),
    "startup_timeout_s": s.seconds("", sessions.MAX_STARTUP_S),
    "key": s.text("the same again gives the same session", pattern=ID),
})  # fmt: skip

_BOTH = {
    "command_id": s.text("the caller's id of this call", pattern=ID),
    "output_limit": s.whole("bytes kept", 0, wire.MAX_OUTPUT_LIMIT),
}
_WATCHED = {
    "timeout_s": s.seconds(),
    "expect": s.listed(
        s.text(minLength=1), "the first that is written ends the call", maxItems=sessions.MAX_EXPECT
    ),
}
RUN = s.body(
    {
        **_BOTH,
        **_WATCHED,
        "interactive": s.flag("its stdin is the terminal"),
        "on_timeout": s.one_of((sessions.INTERRUPT, sessions.LEAVE)),
    },
    {"command": s.text("for the shell")},
)
INPUT = s.body({
    **_BOTH,
    **_WATCHED,
    "data": s.text("what is typed"),
    "data_b64": s.text("the same as base64"),
})  # fmt: skip
INTERRUPTION = s.body({
    **_BOTH,
    "target": s.text("only while this command runs", pattern=ID),
    "grace_s": s.seconds("from Ctrl-C to KILL", sessions.MAX_GRACE_S),
})  # fmt: skip

SESSION = s.answer(
    {
        "name": s.text(),
        "state": s.one_of(sessions.STATES),
        "shell": s.text(),
        "pid": s.whole(),
        "started_at": s.text(),
        "command_id": s.maybe(s.text()),
        "exit_code": s.maybe(s.whole("the shell's, once it has ended")),
        "cut_off": s.flag(),
        "startup": s.text("what its start-up files wrote"),
    },
    {"startup_b64": s.text()},
)
TURN = s.answer(
    {
        "command_id": s.text(),
        "done": s.flag("false: ask again with the same command_id"),
        "state": s.one_of(sessions.STATES, "of the session"),
        "exit_code": s.maybe(s.whole()),
        "timed_out": s.flag(),
        "interrupted": s.flag(),
        "expected": s.maybe(s.text()),
        "output": s.text(),
        "notices": s.text("what came beside the command"),
        "output_bytes": s.whole(),
        "output_truncated": s.flag(),
        "cut_off": s.flag(),
        "wall_s": s.number(),
        "boot_id": s.text(),
    },
    {"output_b64": s.text(), "notices_b64": s.text()},
)

SIGNAL = s.body(
    {"tree": s.flag("all of its tree")},
    {"signal": {"type": ["string", "integer"], "description": "name or number"}},
)
SIZE = s.body(
    {},
    {"rows": s.whole("", 1, terminal.MAX_SIZE), "cols": s.whole("", 1, terminal.MAX_SIZE)},
)

SCHEMAS = {
    "Command": COMMAND,
    "Result": RESULT,
    "Process": PROCESS,
    "SessionRequest": SESSION_ASKED,
    "SessionRun": RUN,
    "SessionInput": INPUT,
    "SessionInterrupt": INTERRUPTION,
    "Session": SESSION,
    "SessionResult": TURN,
    "Signal": SIGNAL,
    "TerminalSize": SIZE,
}

_FRAMES = {names.MEDIA_FRAMES: s.text("frames, see docs/api.md", format="binary")}
_WAIT = Parameter("wait_s", s.number("", minimum=0, maximum=handles.MAX_WAIT_S), "seconds")


def _json(name: str) -> dict[str, s.Schema]:
    return {names.MEDIA_JSON: s.ref(name)}


def _do(method: str, tail: str, summary: str, answer: Answer, **more: Unpack[More]) -> Operation:
    status = 204 if answer is NOTHING else 200
    given: More = {"reasons": problems.COMMAND, "tag": "commands", **more}
    return Operation(
        method=method, path=f"{_AT}/{tail}", summary=summary, answers={status: answer}, **given
    )


OPERATIONS = (
    _do(
        "POST", "exec", "run a command to its end",
        Answer("how it ended; with Accept: application/vnd.sandman.frames its output as it comes",
               {**_json("Result"), **_FRAMES}),
        body={**_json("Command"), **_FRAMES}, needs_body=True,
    ),
    _do(
        "GET", "processes", "those that run, and the last that ended",
        told(s.answer({"processes": s.listed(s.ref("Process"))})),
    ),
    _do(
        "POST", "processes", "start a command", told(s.ref("Process")),
        body={**_json("Command"), **_FRAMES}, needs_body=True,
    ),
    _do("GET", "processes/{exec_id}", "state and result", told(s.ref("Process")), parameters=(_WAIT,)),
    _do("DELETE", "processes/{exec_id}", "end it with its whole tree", NOTHING),
    _do(
        "GET", "processes/{exec_id}/output", "output from these offsets on", Answer("as it comes", _FRAMES),
        parameters=(Parameter("stdout", s.whole()), Parameter("stderr", s.whole())),
    ),
    _do(
        "POST", "processes/{exec_id}/stdin", "add to its input", told(s.ref("Process")),
        parameters=(Parameter("offset", s.whole()), Parameter("close", s.one_of(("0", "1")))),
        body={names.MEDIA_BYTES: s.text(format="binary")},
    ),
    _do(
        "POST", "processes/{exec_id}/signal", "signal it", NOTHING,
        body=_json("Signal"), needs_body=True,
    ),
    _do(
        "POST", "processes/{exec_id}/resize", "give its terminal another size", NOTHING,
        body=_json("TerminalSize"), needs_body=True,
    ),
    _do("GET", "sessions", "shells that there are", told(s.answer({"sessions": s.listed(s.ref("Session"))}))),
    _do("POST", "sessions", "start a shell", told(s.ref("Session")), body=_json("SessionRequest")),
    _do("GET", "sessions/{name}", "one of them", told(s.ref("Session"))),
    _do(
        "DELETE", "sessions/{name}", "end it with all that it started", NOTHING,
        parameters=(Parameter("key", s.text(pattern=ID)),),
    ),
    _do(
        "POST", "sessions/{name}/run", "run a command in it", told(s.ref("SessionResult")),
        body=_json("SessionRun"), needs_body=True, parameters=(_WAIT,),
    ),
    _do(
        "POST", "sessions/{name}/input", "type on its terminal", told(s.ref("SessionResult")),
        body=_json("SessionInput"), parameters=(_WAIT,),
    ),
    _do(
        "POST", "sessions/{name}/interrupt", "Ctrl-C", told(s.ref("SessionResult")),
        body=_json("SessionInterrupt"), parameters=(_WAIT,),
    ),
)  # fmt: skip
