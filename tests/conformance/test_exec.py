"""Commands: arguments, streams, codes, input, environment, directory, user, images. Points 1 to 12."""

from __future__ import annotations

import json
import time

import pytest

from sandman.errors import (
    BadRequestError,
    NotADirectoryPathError,
    PathNotFoundError,
    UserUnsupportedError,
)
from tests.conformance.cells import Box, as_root, as_user, over, over_each_image, with_shell

MIB = 1 << 20
ECHO_ARGS = "import sys; sys.stdout.write(chr(0).join(sys.argv[1:]))"
WHO = (
    "import os; print(os.getuid(), os.getgid(), *sorted(set(os.getgroups())), "
    "os.environ.get('HOME'), os.environ.get('USER'), os.environ.get('LOGNAME'))"
)


@over()
def test_point_01_a_mebibyte_of_arguments_is_verbatim(box: Box) -> None:
    many = ["x" * 65536] * 16
    assert box.python(ECHO_ARGS, *many).stdout_text.split("\0") == many
    odd = ["", " ", "$HOME", "`id`", '"', "'", "\\", "a\nb", "*", "~", "-n", "--", "ü", "\t"]
    assert box.python(ECHO_ARGS, *odd).stdout_text.split("\0") == odd


@over()
def test_point_01_an_argument_longer_than_the_kernel_takes_is_the_commands_failure(
    box: Box,
) -> None:
    result = box.python(ECHO_ARGS, "x" * (128 * 1024 + 1))
    assert (result.exit_code, result.start_error) == (126, "arguments_too_long")
    assert b"too long" in result.stderr


@over()
def test_point_02_arguments_meet_no_shell(box: Box) -> None:
    assert box.python(ECHO_ARGS, "$HOME; id", "a  b").stdout == b"$HOME; id\0a  b"


@over(where=with_shell)
def test_point_02_a_string_meets_the_images_shell_bash_first(box: Box) -> None:
    assert box.run("echo $0 $((6 * 7))").stdout_text == f"{box.cell.shell} 42\n"


@over(where=with_shell)
def test_point_02_a_login_shell_on_request_only(box: Box, place: str) -> None:
    box.files.write(f"{place}/.profile", "FROM_PROFILE=yes\n")
    script = 'echo "${FROM_PROFILE-no}"'
    assert box.run(script, env={"HOME": place}).stdout == b"no\n"
    assert box.run(script, env={"HOME": place}, login=True).stdout == b"yes\n"


@over("empty-0", "empty-65534")
def test_point_02_where_there_is_no_shell_the_result_says_so(box: Box) -> None:
    result = box.run("true")
    assert (result.exit_code, result.start_error) == (127, "not_found")
    assert b"no bash and no sh" in result.stderr


@over()
def test_point_03_streams_are_apart_and_exact(box: Box) -> None:
    data = b"  lead\r\n\0\ttail  \n\n"
    script = "import os; d = os.read(0, 99); os.write(1, d); os.write(2, d + b'!')"
    result = box.python(script, stdin=data)
    assert (result.stdout, result.stderr) == (data, data + b"!")
    assert box.python("import os; os.write(1, b'no end of line')").stdout == b"no end of line"


@over()
def test_point_03_merged_streams_keep_their_order(box: Box) -> None:
    script = "import os\nfor n in range(200): os.write(1 + n % 2, b'%d ' % n)"
    result = box.python(script, merge_stderr=True)
    assert result.stdout_text.split() == [str(n) for n in range(200)]
    assert result.stderr == b""


@over()
def test_point_04_bytes_are_native_and_text_is_decoded_whole(box: Box) -> None:
    every = "import os; os.write(1, bytes(range(256)) * 64)"
    assert box.python(every).stdout == bytes(range(256)) * 64
    split = (
        "import os, time\n"
        "for b in '€ü😀'.encode(): os.write(1, bytes([b])); time.sleep(0.01)\n"
        "os.write(1, b'\\xff')"
    )
    assert box.python(split).stdout_text == "€ü😀\ufffd"


@over()
def test_point_05_exit_codes(box: Box) -> None:
    for code in (0, 1, 42, 126, 127, 255):
        result = box.python(f"import os; os._exit({code})")
        assert (result.exit_code, result.signal, result.start_error) == (code, None, None)


@over()
def test_point_05_a_missing_program_is_127_and_what_is_none_126(box: Box, place: str) -> None:
    for name in ("no-such-program", f"{place}/none"):
        result = box.exec([name])
        assert (result.exit_code, result.start_error) == (127, "not_found")
        assert name.encode() in result.stderr
    box.files.write(f"{place}/data", b"#!/bin/true\n", mode=0o644)
    result = box.exec([f"{place}/data"])
    assert (result.exit_code, result.start_error) == (126, "not_executable")
    result = box.exec([place])
    assert (result.exit_code, result.start_error) == (126, "not_executable")
    box.files.write(f"{place}/script", b"#!/no/interpreter\n", mode=0o755)
    result = box.exec([f"{place}/script"])
    assert (result.exit_code, result.start_error) == (127, "not_found")
    assert b"interpreter" in result.stderr


@over()
@pytest.mark.parametrize("number", [1, 6, 9, 11, 15])
def test_point_05_06_death_by_a_signal_is_128_and_neither_timeout_nor_oom(
    box: Box, number: int
) -> None:
    result = box.python(f"import os; os.kill(os.getpid(), {number})", timeout_s=30)
    assert (result.exit_code, result.signal) == (128 + number, number)
    assert not result.timed_out
    assert not result.oom_killed


@over()
def test_point_07_without_stdin_a_reader_ends_at_once(box: Box) -> None:
    script = "import sys; print(repr(sys.stdin.buffer.read()))"
    for stdin in (None, "", b""):
        assert box.python(script, stdin=stdin, timeout_s=20).stdout == b"b''\n"


@over()
def test_point_07_stdin_is_verbatim(box: Box) -> None:
    script = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    for data in (b"$HOME `id` \"'\\ \n", b"\0\xff\xfe", bytes(range(256)) * 300):
        assert box.python(script, stdin=data).stdout == data
    assert box.python(script, stdin="ü\n").stdout == "ü\n".encode()


@over_each_image()
def test_point_07_fifty_mebibytes_of_stdin(box: Box) -> None:
    script = """
import os
count = 0
while piece := os.read(0, 65536):
    count += len(piece)
print(count)
"""
    assert box.python(script, stdin=b"\0" * (50 * MIB)).stdout == b"52428800\n"


@over(where=with_shell)
def test_point_07_a_heredoc_and_wc_agree(box: Box) -> None:
    assert box.run("wc -c", stdin=b"x" * MIB).stdout.split() == [b"1048576"]
    assert box.run("cat <<'E'\n$a\nE").stdout == b"$a\n"


@over()
def test_point_08_env_is_merged_verbatim_and_not_kept(box: Box) -> None:
    odd = {"EMPTY": "", "QUOTES": "a'b\"c", "LINES": "a\nb\n", "SPACE": " x ", "DOLLAR": "$HOME"}
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    seen = json.loads(box.python(script, env=odd).stdout)
    assert odd.items() <= seen.items()
    assert seen["FROM_IMAGE"] == "yes"
    later = json.loads(box.python(script).stdout)
    assert not odd.keys() & later.keys()
    alone = json.loads(box.python(script, env={"ONLY": "1"}, env_mode="replace").stdout)
    assert alone.keys() - {"SANDMAN_EXEC", "LC_CTYPE"} == {"ONLY"}


@over()
@pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
def test_point_08_a_name_that_is_none_is_refused_and_nothing_runs(
    box: Box, place: str, name: str
) -> None:
    with pytest.raises(BadRequestError):
        box.python(f"open({place + '/ran'!r}, 'w')", env={name: "x"})
    assert not box.files.exists(f"{place}/ran")


@over()
def test_point_09_working_directory(box: Box, place: str) -> None:
    script = "import os; print(os.getcwd())"
    assert box.python(script).stdout_text == f"{box.cell.image.workdir}\n"
    spaced = f"{place}/with two  spaces"
    box.files.mkdir(spaced)
    assert box.python(script, cwd=spaced).stdout_text == f"{spaced}\n"
    assert box.python(script, cwd="..").stdout_text == f"{_parent(box.cell.image.workdir)}\n"


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


@over()
def test_point_09_a_missing_directory_is_named_and_nothing_runs(box: Box, place: str) -> None:
    script = f"open({place + '/ran'!r}, 'w')"
    with pytest.raises(PathNotFoundError, match="no-such-dir"):
        box.python(script, cwd=f"{place}/no-such-dir")
    box.files.write(f"{place}/file", b"")
    with pytest.raises(NotADirectoryPathError, match="file"):
        box.python(script, cwd=f"{place}/file")
    assert not box.files.exists(f"{place}/ran")


@over(where=as_root)
def test_point_10_another_user_by_uid(box: Box) -> None:
    seen = box.python(WHO, user=4321).stdout_text.split()
    assert seen[:2] == ["4321", "0"]
    assert seen[-3] == "/"
    assert box.python("import os; print(os.getuid())", user="4321").stdout == b"4321\n"


@over(where=lambda cell: as_root(cell) and with_shell(cell))
def test_point_10_another_user_by_name_with_home_and_groups(box: Box) -> None:
    seen = box.python(WHO, user="nobody").stdout_text.split()
    assert seen[:2] == ["65534", "65534"]
    assert seen[-2:] == ["nobody", "nobody"]
    home = box.run("sed -n 's/^nobody:.*:\\(.*\\):.*/\\1/p' /etc/passwd").stdout_text.strip()
    assert seen[-3] == home


@over("debian-0", "musl-0", "busybox-0")
def test_point_10_a_user_made_at_run_time_with_supplementary_groups(box: Box) -> None:
    box.run("cp /etc/passwd /tmp/passwd; cp /etc/group /tmp/group", check=True)
    try:
        made = (
            "echo 'late:x:4711:4711::/tmp:/bin/sh' >> /etc/passwd; "
            "printf 'late:x:4711:\\nmore:x:4712:other,late\\n' >> /etc/group"
        )
        box.run(made, check=True)
        seen = box.python(WHO, user="late").stdout_text.split()
        assert seen == ["4711", "4711", "4711", "4712", "/tmp", "late", "late"]
    finally:
        box.run("cat /tmp/passwd > /etc/passwd; cat /tmp/group > /etc/group", check=True)


@over()
def test_point_10_an_unknown_user_is_named(box: Box) -> None:
    with pytest.raises(UserUnsupportedError, match="no-such-user"):
        box.python("pass", user="no-such-user")


@over(where=as_user)
def test_point_10_where_the_daemon_is_not_root_others_are_unsupported(box: Box) -> None:
    with pytest.raises(UserUnsupportedError, match="4321"):
        box.python("pass", user=4321)
    own = box.python("import os; print(os.getuid())", user=box.cell.uid)
    assert own.stdout_text == f"{box.cell.uid}\n"


@over()
def test_point_11_the_images_environment_holds_and_the_daemons_does_not(box: Box) -> None:
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    seen = json.loads(box.python(script).stdout)
    assert seen["FROM_IMAGE"] == "yes"
    assert seen["PATH"].startswith("/usr/local/sbin:")
    assert {name for name in seen if name.startswith("SANDMAN_")} == {"SANDMAN_EXEC"}


@over("debian-0", "readonly-1000")
def test_point_11_bash_env_makes_an_environment_for_each_command(box: Box, place: str) -> None:
    box.files.write(f"{place}/rc", "activate() { echo activated; }\n")
    assert box.run("activate", env={"BASH_ENV": f"{place}/rc"}).stdout == b"activated\n"


@over()
def test_point_12_any_image_serves_commands_files_and_trees(box: Box, place: str, tmp_path) -> None:
    assert box.python("print(6 * 7)").stdout == b"42\n"
    box.files.write(f"{place}/deep/er/file", b"data")
    assert box.files.read(f"{place}/deep/er/file") == b"data"
    assert [e.path.rpartition("/")[2] for e in box.files.list(place)] == ["deep"]
    box.files.download_dir(place, tmp_path / "tree")
    assert (tmp_path / "tree/deep/er/file").read_bytes() == b"data"
    begun = time.monotonic()
    assert box.python("import time; time.sleep(600)", timeout_s=0.2).timed_out
    assert time.monotonic() - begun < 300
