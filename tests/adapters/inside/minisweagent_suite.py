"""mini-swe-agent on its environment class, by import path: a scripted model solves a real task, and the semantics of commands.

Collected by a pytest of its own, in mini-swe-agent's virtual environment.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output
from pydantic import ValidationError

from sandman import errors
from sandman.adapters import minisweagent as adapter
from sandman.adapters.minisweagent import SandmanEnvironment
from sandman.sync import Client, ConfigurationError
from tests.adapters.inside import examples

IMAGE = os.environ.get("ADAPTERS_IMAGE", "task:1")
H11 = os.environ.get("ADAPTERS_H11", "")
CHECK = r"""
import h11
there = h11.Connection(h11.SERVER)
there.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxxx__1a\r\n")
try:
    while there.next_event() is not h11.NEED_DATA:
        pass
except h11.RemoteProtocolError as error:
    print("refused:", error)
else:
    raise SystemExit("two bytes that are no line end were passed over")
"""
FIX = r"""
from pathlib import Path
file = Path("h11/_readers.py")
text = file.read_text()
for old, new in (
    ("        self._bytes_to_discard = 0\n", "        self._bytes_to_discard = b''\n"),
    ("        if self._bytes_to_discard > 0:\n            data = buf.maybe_extract_at_most(self._bytes_to_discard)",
     "        if self._bytes_to_discard:\n            data = buf.maybe_extract_at_most(len(self._bytes_to_discard))"),
    ("            self._bytes_to_discard -= len(data)\n            if self._bytes_to_discard > 0:",
     "            if data != self._bytes_to_discard[: len(data)]:\n"
     "                raise LocalProtocolError(f'malformed chunk footer: {data!r}')\n"
     "            self._bytes_to_discard = self._bytes_to_discard[len(data) :]\n            if self._bytes_to_discard:"),
    ("        assert self._bytes_to_discard == 0\n", "        assert self._bytes_to_discard == b''\n"),
    ("            self._bytes_to_discard = 2\n", "            self._bytes_to_discard = b'\\r\\n'\n"),
):
    assert text.count(old) == 1, old
    text = text.replace(old, new)
file.write_text(text)
"""
PREPARE = (
    "mkdir work && tar -xzf h11.tar.gz --strip-components=1 -C work && cd work && git init -q"
    " && git -c user.name=a -c user.email=a add -A && git -c user.name=a -c user.email=a commit -qm base"
)


def make(**options) -> SandmanEnvironment:
    return SandmanEnvironment(image=IMAGE, workdir="/tmp", interpreter=["bash", "-c"], **options)


@pytest.fixture(scope="module")
def shared():
    environment = make(timeout=30)
    yield environment
    environment.cleanup()


def prepared() -> SandmanEnvironment:
    """The example's sandbox, with the release that has the bug."""
    environment = examples.namespace("mini-swe-agent", IMAGE)["environment"]
    environment.sandbox.files.upload(H11, "h11.tar.gz")
    environment.sandbox.files.write("check.py", CHECK)
    assert environment.execute({"command": PREPARE})["returncode"] == 0
    return environment


def in_work(command: str) -> dict:
    return make_output(f"I run {command[:20]}", [{"command": f"cd work && {command}"}])


def test_a_scripted_model_solves_a_real_task() -> None:
    environment = prepared()
    script = [
        in_work("PYTHONPATH=. python3 ../check.py"),
        in_work("grep -n _bytes_to_discard h11/_readers.py"),
        in_work(f"python3 - <<'FIX'{FIX}FIX"),
        in_work("PYTHONPATH=. python3 ../check.py"),
        in_work(
            "git add h11/_readers.py && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff --cached"
        ),
    ]
    agent = DefaultAgent(
        DeterministicModel(outputs=script),
        environment,
        system_template="You are on {{system}} {{release}}.",
        instance_template="{{task}}",
        cost_limit=0,
    )
    info = agent.run("Chunks must end with CR LF.")
    assert info["exit_status"] == "Submitted"
    observations = [
        message["content"]
        for message in agent.messages
        if "<returncode>" in str(message["content"])
    ]
    assert "<returncode>1</returncode>" in observations[0]
    assert "refused: malformed chunk footer" in observations[3]
    environment.cleanup()

    fresh = prepared()
    fresh.sandbox.files.write("work/patch", info["submission"])
    assert fresh.execute({"command": "PYTHONPATH=. python3 ../check.py"}, "work")["returncode"] == 1
    done = fresh.execute({"command": "git apply patch && PYTHONPATH=. python3 ../check.py"}, "work")
    assert (done["returncode"], done["output"][:8]) == (0, "refused:")
    fresh.cleanup()


def test_output_is_both_streams_in_their_order(shared) -> None:
    said = shared.execute({"command": "echo a; echo b >&2; echo c; exit 3"})
    assert said == {"output": "a\nb\nc\n", "returncode": 3, "exception_info": ""}


def test_each_command_is_a_shell_of_its_own(shared) -> None:
    shared.execute({"command": "cd /usr; export A=1"})
    assert shared.execute({"command": "pwd; echo $A"})["output"] == "/tmp\n\n"
    assert shared.execute({"command": "pwd"}, "/usr")["output"] == "/usr\n"


def test_a_timeout_keeps_what_was_written_and_ends_all_that_was_started(shared) -> None:
    told = shared.execute({"command": "sleep 77 & echo so far; sleep 77"}, timeout=1)
    assert (told["output"], told["returncode"]) == ("so far\n", -1)
    assert "timed out after 1 seconds" in told["exception_info"]
    assert told["extra"]["exception_type"] == "TimeoutExpired"
    assert shared.execute({"command": "pgrep -cf 'sleep 7[7]'"})["output"] == "0\n"


def test_bytes_that_are_no_text(shared) -> None:
    assert shared.execute({"command": r"printf 'a\xff'"})["output"] == "a\ufffd"


def test_stdin_is_empty(shared) -> None:
    assert shared.execute({"command": "cat; echo end"})["output"] == "end\n"


def test_an_interpreter_that_is_not_there_is_a_result(shared) -> None:
    shared.config.interpreter[0] = "no-such-shell"
    try:
        told = shared.execute({"command": "true"})
    finally:
        shared.config.interpreter[0] = "bash"
    assert told["returncode"] == 127
    assert "no-such-shell" in told["output"]


def test_a_command_that_cannot_be_is_told_to_the_model(shared) -> None:
    told = shared.execute({"command": "echo \0"})
    assert (told["returncode"], told["extra"]["exception_type"]) == (-1, "BadRequestError")


@pytest.mark.parametrize("command", ["echo {0}; exit 1", "echo a; echo {0}"])
def test_what_only_looks_like_a_submission(shared, command) -> None:
    mark = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    assert mark in shared.execute({"command": command.format(mark)})["output"]
    with pytest.raises(Submitted) as caught:
        shared.execute({"command": f"echo; echo {mark}; echo patch"})
    assert caught.value.messages[0]["extra"]["submission"] == "patch\n"


def test_templates_and_trajectory(shared) -> None:
    told = shared.get_template_vars(more=1)
    assert (told["system"], told["more"], told["image"]) == ("Linux", 1, IMAGE)
    assert told["release"] == shared.execute({"command": "uname -r"})["output"].strip()
    saved = shared.serialize()["info"]["config"]
    assert saved["environment_type"] == "sandman.adapters.minisweagent.SandmanEnvironment"
    assert saved["sandbox"] == shared.sandbox.id


def test_variables(monkeypatch) -> None:
    monkeypatch.setenv("ONE", "of the trainer")
    monkeypatch.setenv("TWO", "of the trainer")
    environment = make(env={"ONE": "of the configuration"}, forward_env=["ONE", "TWO", "NONE"])
    told = environment.execute({"command": 'echo "$ONE, $TWO, $NONE"'})
    assert told["output"] == "of the configuration, of the trainer, \n"
    environment.cleanup()


def test_a_sandbox_that_is_lost_is_raised_and_no_result() -> None:
    environment = make()
    with Client() as client:
        client.release(environment.sandbox.id)
    with pytest.raises(errors.ReleasedError):
        environment.execute({"command": "true"})
    environment.cleanup()
    environment.cleanup()


def test_one_that_is_forgotten_is_released() -> None:
    environment = make(run="forgotten")
    with Client() as client:
        assert len(client.list("forgotten")) == 1
        del environment
        gc.collect()
        until = time.monotonic() + 20
        while client.list("forgotten") and time.monotonic() < until:
            time.sleep(0.05)
        assert client.list("forgotten") == []


def test_one_that_is_forgotten_while_somebody_borrows_a_client_waits_for_nothing() -> None:
    environment = make(run="collected")
    with Client() as client:
        with adapter._clients._lock:
            del environment
            gc.collect()
        until = time.monotonic() + 20
        while client.list("collected") and time.monotonic() < until:
            time.sleep(0.05)
        assert client.list("collected") == []


def test_those_that_are_left_are_released_at_the_end_of_the_process() -> None:
    made = (
        "import gc\n"
        "from sandman.adapters.minisweagent import SandmanEnvironment as Environment\n"
        f"kept, cycle = (Environment(image={IMAGE!r}, run='exit') for _ in range(2))\n"
        "cycle.itself = cycle\n"
        "del cycle\n"
        "gc.collect()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", made], capture_output=True, text=True, check=False
    )
    with Client() as client:
        assert (client.list("exit"), ended.stderr, ended.returncode) == ([], "", 0)


def test_one_that_cannot_be_had(shared) -> None:
    del shared
    with pytest.raises(errors.ImageNotFoundError):
        SandmanEnvironment(image="no-such-image")
    with pytest.raises(ValidationError):
        SandmanEnvironment(imagee=IMAGE)


def test_without_a_gateway(monkeypatch, tmp_path) -> None:
    gc.collect()
    for name in ("SANDMAN_URL", "SANDMAN_LOCAL_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigurationError):
        Client()
