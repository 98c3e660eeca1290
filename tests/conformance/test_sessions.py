"""Shells that keep their state from command to command. Point 27.

Ten thousand commands in one of them: `test_sessions_long`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.conformance.cells import Box, over, with_shell


@over(where=with_shell)
def test_point_27_directory_variables_and_functions_stay(box: Box, place: str) -> None:
    with box.sandbox.session("work") as shell:
        assert shell.run(f"cd {place}; X='a  b'; f() {{ echo \"<$X>\"; return 7; }}").exit_code == 0
        result = shell.run("pwd; f")
        assert (result.output_text, result.exit_code) == (f"{place}\n<a  b>\n", 7)
        assert shell.run("echo $?").output == b"7\n"
    assert box.run("pwd").stdout_text == f"{box.cell.image.workdir}\n"


@over(where=with_shell)
def test_point_27_sessions_are_apart_and_run_side_by_side(box: Box) -> None:
    with box.sandbox.session("one") as one, box.sandbox.session("two") as two:
        one.run("X=1; cd /proc")
        two.run("X=2")
        with ThreadPoolExecutor(2) as pool:
            slow = pool.submit(one.run, "sleep 1; echo $X; pwd")
            assert two.run("echo $X; pwd").output_text == f"2\n{box.cell.image.workdir}\n"
            assert not slow.done()
            assert slow.result().output == b"1\n/proc\n"


@over(where=with_shell)
def test_point_27_lines_and_documents_and_no_trace_of_a_terminal(box: Box) -> None:
    with box.sandbox.session("work") as shell:
        command = "for n in 1 2\ndo\n  cat <<'E'\n  $n \"quoted\"\nE\ndone\nprintf 'no end'"
        result = shell.run(command)
        assert result.output == b'  $n "quoted"\n' * 2 + b"no end"
        assert shell.run("printf 'a\\r\\nb\\n'").output == b"a\r\nb\n"
        assert shell.run("echo $TERM").output == b"dumb\n"


@over(where=with_shell)
def test_point_27_a_syntax_error_is_told_and_wedges_nothing(box: Box) -> None:
    with box.sandbox.session("work") as shell:
        shell.run("X=kept")
        for wrong in ("if true; then", ")", "echo 'open"):
            assert shell.run(wrong, timeout_s=60).exit_code not in {0, None}
        assert shell.run("echo $X").output == b"kept\n"


@over(where=with_shell)
def test_point_27_a_command_is_interrupted_at_its_timeout_and_the_shell_goes_on(box: Box) -> None:
    with box.sandbox.session("work") as shell:
        shell.run("X=kept")
        result = shell.run("echo begun; sleep 600", timeout_s=0.5)
        assert (result.timed_out, result.output) == (True, b"begun\n")
        assert shell.run("echo $X").output == b"kept\n"


@over(where=with_shell)
def test_point_27_a_dialogue_with_a_program(box: Box) -> None:
    with box.sandbox.session("work") as shell:
        asked = shell.run(
            "printf 'name? '; read n; echo \"hello $n\"", interactive=True, expect=["name? "]
        )
        assert (asked.expected, asked.exit_code) == ("name? ", None)
        answer = shell.input("Ann\n")
        assert (answer.output, answer.exit_code) == (b"hello Ann\n", 0)


@over("debian-0", "readonly-1000")
def test_point_27_a_python_prompt(box: Box) -> None:
    with box.sandbox.session("work") as shell:
        assert shell.run("python3", interactive=True, expect=[">>> "]).expected == ">>> "
        assert b"42" in shell.input("6 * 7\n", expect=[">>> "]).output
        assert shell.input("exit(3)\n").exit_code == 3
        assert shell.run("echo back").output == b"back\n"


@over(where=with_shell)
def test_point_27_the_end_of_a_session_is_the_end_of_what_it_started(box: Box) -> None:
    with box.sandbox.session("work") as shell:
        shell.run("sleep 600 & (setsid sleep 600 &)")
    assert box.wait_alone() == {}
