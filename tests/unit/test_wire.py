"""The wire: frames at any split, specifications and results there and back."""

from __future__ import annotations

import base64
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandman import handles, names, terminal, wire
from sandman.errors import BadRequestError

kinds = st.sampled_from(sorted(wire.FRAME_TYPES))
frames = st.lists(st.tuples(kinds, st.binary(max_size=60)), max_size=12)
# What can be an argument or a path: any text but NUL, and bytes that are no text.
texts = st.binary(max_size=20).map(
    lambda data: data.replace(b"\0", b"x").decode("utf-8", "surrogateescape")
)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    bounds = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


@given(frames, st.lists(st.integers(0, 10**6), max_size=30))
def test_frames_round_trip_at_any_split(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(wire.encode_frame(kind, payload) for kind, payload in sent)
    decoder = wire.FrameDecoder()
    got = [frame for piece in split(data, cuts) for frame in decoder.feed(piece)]
    assert got == [wire.Frame(kind, payload) for kind, payload in sent]
    assert decoder.is_clean


@given(frames.filter(bool), st.data())
def test_a_cut_stream_is_not_clean(sent: list[tuple[int, bytes]], data: st.DataObject) -> None:
    whole = b"".join(wire.encode_frame(kind, payload) for kind, payload in sent)
    last = len(wire.encode_frame(*sent[-1]))
    cut = data.draw(st.integers(len(whole) - last + 1, len(whole) - 1))
    decoder = wire.FrameDecoder()
    assert len(list(decoder.feed(whole[:cut]))) == len(sent) - 1
    assert not decoder.is_clean


def test_a_reader_may_stop_within_a_feed_and_go_on() -> None:
    decoder = wire.FrameDecoder()
    two = wire.encode_frame(wire.STDIN, b"a") + wire.encode_frame(wire.STDIN, b"b")
    assert next(decoder.feed(two)).payload == b"a"
    assert [frame.payload for frame in decoder.feed(b"")] == [b"b"]


@pytest.mark.parametrize("header", [(0, 0), (99, 0), (wire.STDOUT, wire.MAX_FRAME_BYTES + 1)])
def test_what_is_no_frame(header: tuple[int, int]) -> None:
    with pytest.raises(BadRequestError):
        list(wire.FrameDecoder().feed(wire.HEADER.pack(*header)))


terminals = st.builds(
    terminal.TerminalSpec,
    rows=st.integers(1, terminal.MAX_SIZE),
    cols=st.integers(1, terminal.MAX_SIZE),
    term=texts.filter(bool),
)
specs = st.builds(
    wire.ExecSpec,
    argv=st.lists(texts, min_size=1, max_size=4).filter(lambda a: bool(a[0])).map(tuple),
    shell=st.none(),
    cwd=st.none() | texts,
    env=st.dictionaries(texts.filter(lambda k: k and "=" not in k), texts, max_size=3).map(
        lambda env: tuple(env.items())
    ),
    env_mode=st.sampled_from(["merge", "replace"]),
    user=st.none() | texts.filter(bool) | st.integers(0, 2**31),
    stdin=st.none() | st.binary(max_size=50),
    timeout_s=st.none() | st.floats(0.001, 1e8),
    merge_stderr=st.booleans(),
    output_limit=st.integers(0, wire.MAX_OUTPUT_LIMIT),
    login=st.just(False),
    exec_id=st.none() | st.text("abc._-", min_size=1, max_size=64),
    detached=st.booleans(),
    attached_grace_s=st.none() | st.floats(0.001, wire.MAX_ATTACHED_GRACE_S),
    stdin_open=st.booleans(),
    terminal=st.none() | terminals,
).map(lambda spec: spec._replace(stdin=None) if spec.terminal else spec)


@given(specs)
def test_specifications_round_trip(spec: wire.ExecSpec) -> None:
    assert wire.ExecSpec.from_json(wire.load_object(json.dumps(spec.to_json()).encode())) == spec


def test_a_shell_specification_round_trips() -> None:
    spec = wire.ExecSpec(shell="echo hi", login=True)
    assert wire.ExecSpec.from_json(spec.to_json()) == spec


results = st.builds(
    wire.ExecResult,
    exit_code=st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    timed_out=st.booleans(),
    abandoned=st.booleans(),
    start_error=st.none() | st.sampled_from(wire.START_ERRORS),
    stdout=st.binary(max_size=60),
    stderr=st.binary(max_size=60),
    stdout_bytes=st.integers(0, 2**63 - 1),
    stderr_bytes=st.integers(0, 2**63 - 1),
    stdout_truncated=st.booleans(),
    stderr_truncated=st.booleans(),
    oom_killed=st.none() | st.booleans(),
    wall_s=st.floats(0, 1e6),
    cpu_s=st.none() | st.floats(0, 1e6),
    peak_memory_bytes=st.none() | st.integers(0, 2**63 - 1),
    throttled_s=st.none() | st.floats(0, 1e6),
    exec_id=st.text("abc"),
    boot_id=st.text("abc"),
)


@given(results)
def test_results_round_trip(result: wire.ExecResult) -> None:
    assert wire.ExecResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_results_pass_over_what_they_do_not_know() -> None:
    result = wire.ExecResult.from_json({"exit_code": 0, "news": 1})
    assert (result.exit_code, result.ok) == (0, True)
    assert not result._replace(timed_out=True).ok
    assert result._replace(stdout=b"\xff\xc3", stderr=b"\xa9").stdout_text == "\ufffd\ufffd"
    assert result._replace(stderr=b"\xa9").stderr_text == "\ufffd"
    assert "stdout" not in result.to_json(streams=False)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "argv"),
        ({"argv": ["a"], "shell": "b"}, "argv"),
        ({"argv": []}, "argv"),
        ({"argv": [""]}, "argv"),
        ({"argv": "a"}, "argv"),
        ({"argv": ["a\0"]}, "argv"),
        ({"argv": ["\ud800"]}, "argv"),
        ({"argv": [1]}, "argv"),
        ({"shell": 1}, "shell"),
        ({"argv": ["a"], "cwd": 1}, "cwd"),
        ({"argv": ["a"], "env": []}, "env"),
        ({"argv": ["a"], "env": {"A": 1}}, "env.A"),
        ({"argv": ["a"], "env_mode": "x"}, "env_mode"),
        ({"argv": ["a"], "terminal": True}, "terminal"),
        ({"argv": ["a"], "terminal": {"rows": 0}}, "terminal.rows"),
        ({"argv": ["a"], "terminal": {"cols": 65536}}, "terminal.cols"),
        ({"argv": ["a"], "terminal": {"term": 1}}, "terminal.term"),
        ({"argv": ["a"], "terminal": {"width": 1}}, "terminal.width"),
        ({"argv": ["a"], "terminal": {}, "stdin": "x"}, "stdin"),
        ({"argv": ["a"], "user": ""}, "user"),
        ({"argv": ["a"], "user": -1}, "user"),
        ({"argv": ["a"], "user": True}, "user"),
        ({"argv": ["a"], "stdin": 1}, "stdin"),
        ({"argv": ["a"], "stdin": "\ud800"}, "stdin"),
        ({"argv": ["a"], "stdin": "a", "stdin_b64": "YQ=="}, "stdin"),
        ({"argv": ["a"], "stdin_b64": "?"}, "stdin_b64"),
        ({"argv": ["a"], "timeout_s": 0}, "timeout_s"),
        ({"argv": ["a"], "timeout_s": "1"}, "timeout_s"),
        ({"argv": ["a"], "merge_stderr": 1}, "merge_stderr"),
        ({"argv": ["a"], "output_limit": -1}, "output_limit"),
        ({"argv": ["a"], "output_limit": 1.5}, "output_limit"),
        ({"argv": ["a"], "unknown": 1}, "unknown"),
    ],
)
def test_a_refusal_names_the_field(body: dict[str, object], field: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        wire.ExecSpec.from_json(body)
    assert caught.value.field == field
    assert field.partition(".")[0] in caught.value.detail


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 200_000])
def test_what_is_no_object(data: bytes) -> None:
    with pytest.raises(BadRequestError):
        wire.load_object(data)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"env": {"a": "1", "a": "2"}}'])
def test_a_member_that_is_there_twice_is_named(text: str) -> None:
    with pytest.raises(BadRequestError, match="ambiguous") as caught:
        wire.load_object(text.encode())
    assert caught.value.field == "a"


def test_a_program_is_no_login_shell() -> None:
    with pytest.raises(BadRequestError) as caught:
        wire.ExecSpec.from_json({"argv": ["a"], "login": True})
    assert caught.value.field == "login"
    assert wire.ExecSpec.from_json({"argv": ["a"], "login": False}).argv == ("a",)


@pytest.mark.parametrize("workdir", ["", "rel", "./rel", "~"])
def test_a_sandboxs_directory_is_absolute(workdir: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        wire.Claim.from_json({"claim_id": "c", "workdir": workdir})
    assert caught.value.field == "workdir"


def test_stdin_as_text_or_base64() -> None:
    encoded = base64.b64encode(b"\xff\0").decode()
    assert wire.ExecSpec.from_json({"argv": ["a"], "stdin_b64": encoded}).stdin == b"\xff\0"
    assert wire.ExecSpec.from_json({"argv": ["a"], "stdin": "é"}).stdin == "é".encode()


def test_claims_and_infos_round_trip() -> None:
    claim = wire.Claim("c", "boot", (("A", "b"),), "/w", 7, wire.LeaseTerms(60.0, 0.0))
    assert wire.Claim.from_json(claim.to_json()) == claim
    assert wire.Claim.from_json({"claim_id": "c"}) == wire.Claim("c")
    # A newer gateway may say more than this daemon knows.
    newer = {"claim_id": "c", "more": 1, "lease": {"ttl_s": 1, "more": 1}}
    assert wire.Claim.from_json(newer) == wire.Claim("c", lease=wire.LeaseTerms(1.0, 0.0))
    for bad in ({}, {"claim_id": ""}, {"claim_id": "c", "lease": {}}):
        with pytest.raises(BadRequestError):
            wire.Claim.from_json(bad)
    info = wire.Info("boot", "1", "c", 1.5, "/w", 1, 2, 3)
    assert wire.Info.from_json({**info.to_json(), "news": 1}) == info


def test_a_daemon_may_answer_in_the_millisecond_in_which_it_starts():
    """A call that has waited for it at its door is answered at once."""
    info = wire.Info("boot", "1", None, 0.0)
    assert wire.Info.from_json(info.to_json()) == info


counts = st.integers(0, 2**63 - 1)
gaps = st.builds(
    lambda stream, a, b: handles.Gap(stream, min(a, b), max(a, b)),
    st.sampled_from(handles.STREAMS), counts, counts,
)  # fmt: skip
infos = st.builds(
    handles.ProcessInfo,
    exec_id=st.text("abc._-", min_size=1, max_size=64),
    state=st.sampled_from([handles.RUNNING, handles.ENDED]),
    started_at=st.just("2026-11-29T12:00:00Z"),
    detached=st.booleans(),
    stdin_bytes=counts,
    stdout_bytes=counts,
    stderr_bytes=counts,
    result=st.none() | results,
)


@given(gaps)
def test_gaps_round_trip(gap: handles.Gap) -> None:
    assert handles.Gap.from_json(json.loads(json.dumps(gap.to_json()))) == gap


@given(infos)
def test_started_commands_round_trip(info: handles.ProcessInfo) -> None:
    assert handles.ProcessInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
    assert "stdout" not in json.dumps(info.to_json(streams=False).get("result") or {}).replace(
        "stdout_bytes", ""
    ).replace("stdout_truncated", "")


@pytest.mark.parametrize(
    "body",
    [
        {"stream": "stdin", "from": 0, "to": 1}, {"stream": "stdout", "from": 2, "to": 1},
        {"stream": "stdout", "from": -1, "to": 1}, {"stream": "stdout", "from": "0", "to": 1},
    ],
)  # fmt: skip
def test_what_is_no_gap(body: dict[str, object]) -> None:
    with pytest.raises(BadRequestError):
        handles.Gap.from_json(body)


@pytest.mark.parametrize("body", [{}, {"exec_id": "a", "state": "gone"}, {"exec_id": ""}])
def test_what_is_no_started_command(body: dict[str, object]) -> None:
    with pytest.raises(BadRequestError):
        handles.ProcessInfo.from_json(body)


@given(st.text(max_size=70))
def test_what_can_name_a_command(name: str) -> None:
    allowed = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
    expected = 0 < len(name) <= 64 and set(name) <= allowed and set(name) != {"."}
    assert names.is_exec_id(name) == expected


@pytest.mark.parametrize("name", ["a\n", ".", "..", "a" * 65, "", None, 7, "a/b", "%41"])
def test_what_cannot_name_a_command(name: object) -> None:
    assert not names.is_exec_id(name)


@pytest.mark.parametrize("name", terminal.MESSAGES)
def test_a_terminals_messages_round_trip(name: str) -> None:
    assert terminal.parse(terminal.dump(name, {"a": 1})) == (name, {"a": 1})


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"a":{},"b":{}}', b'{"a":1}'])
def test_what_is_no_message_of_a_terminal(data: bytes) -> None:
    with pytest.raises(BadRequestError):
        terminal.parse(data)


def test_a_resize_names_both_rows_and_columns() -> None:
    assert terminal.parse_size({"rows": 1, "cols": 2}) == (1, 2)
    with pytest.raises(BadRequestError, match="cols"):
        terminal.parse_size({"rows": 1})


@pytest.mark.parametrize(
    "member",
    [{"exit_code": None}, {"exit_code": "0"}, {"exit_code": True}, {"exit_code": 256}, {"signal": []},
     {"timed_out": 1}, {"stdout": 1}, {"stdout": "\ud800"}, {"stdout_b64": "a"}, {"stdout_b64": "é"},
     {"stderr_bytes": -1}, {"wall_s": float("nan")}, {"cpu_s": -1}, {"oom_killed": 0}, {"exec_id": {}}],
)  # fmt: skip
def test_fuzzed_result_of_a_daemon_that_lies_is_an_error_of_ours(member: dict[str, object]) -> None:
    with pytest.raises(BadRequestError):
        wire.ExecResult.from_json({"exit_code": 0, **member})
