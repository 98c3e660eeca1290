"""Attempts from inside a sandbox, as root and as a user: on what is around it, and on its own daemon."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests.cluster import hostile, hostile_inside
from tests.cluster.hostile_inside import GUARDED, PORT, WHO, World
from tests.runc.test_hostile import READ, SIGNALS, TRACE
from tests.runc.test_hostile_needs import REBIND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.deployed import Deployed


@pytest.fixture(scope="module")
def world(sandman: Deployed) -> Iterator[World]:
    with hostile_inside.world(sandman) as made:
        yield made


# --- what is around it --------------------------------------------------------------------------

REACH = """
import json, socket, sys, threading
found = []
def attempt(name, host, port):
    try:
        socket.create_connection((host, port), 2).close()
        found.append(name)
    except OSError:
        pass
threads = [threading.Thread(target=attempt, args=(n, *at)) for n, at in json.loads(sys.argv[1]).items()]
[one.start() for one in threads]
[one.join() for one in threads]
print(sorted(found))
"""


def test_what_is_around_answers_others(world: World) -> None:
    for name in world.places.keys() - GUARDED:
        socket.create_connection(world.places[name], 5).close()


@pytest.mark.parametrize("who", WHO)
def test_nothing_around_it_is_reached(world: World, who: str) -> None:
    assert world.python(who, REACH, json.dumps(world.places)) == "[]\n"
    world.stand()


ASK_A_NAME = """
import socket
try:
    print(socket.getaddrinfo("kubernetes.default.svc.cluster.local", 443))
except socket.gaierror:
    print("no name")
"""


@pytest.mark.parametrize("who", WHO)
def test_no_name_is_resolved(world: World, who: str) -> None:
    assert world.python(who, ASK_A_NAME) == "no name\n"


SECRETS = """
import os
for path in ("/var/run/secrets/kubernetes.io/serviceaccount/token", "/var/run/secrets", "/run/secrets"):
    if os.path.exists(path):
        print(path, os.listdir(path) if os.path.isdir(path) else "")
print(sorted(name for name in os.environ if name.startswith(("SANDMAN_", "KUBERNETES_"))))
"""


@pytest.mark.parametrize("who", WHO)
def test_it_holds_no_credential(world: World, who: str) -> None:
    found = world.python(who, SECRETS).splitlines()
    assert len(found) == 1, found
    said = set(json.loads(found[0].replace("'", '"')))
    # What the kubelet tells every pod of its cluster's API server, and the mark of a command.
    assert {one for one in said if not one.startswith("KUBERNETES_")} <= {"SANDMAN_EXEC"}


# --- its own daemon -----------------------------------------------------------------------------

CALL = """
import hashlib, http.client, json, sys
method, path, digest = sys.argv[1:]
guesses = (None, "", "x", digest, hashlib.sha256(digest.encode()).hexdigest(), "Bearer", "null")
for guess in guesses:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=10)
    headers = {} if guess is None else {"Authorization": "Bearer " + guess}
    connection.request(method, path, body="{}", headers=headers)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    print(answer.status, document["reason"], document["detail"])
""".replace("PORT", str(PORT))
DAEMONS = [
    ("GET", "/v1/info"), ("POST", "/v1/exec"), ("POST", "/v1/claim"), ("POST", "/v1/renew"), ("POST", "/v1/probe"),
    ("GET", "/v1/files?path=/etc/shadow"),
]  # fmt: skip


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize(("method", "path"), DAEMONS, ids=str)
def test_its_own_daemon_takes_no_guess(world: World, who: str, method: str, path: str) -> None:
    wanted = "401 unauthenticated a bearer token is required, and this is not it\n"
    assert world.python(who, CALL, method, path, world.digest) == wanted * 7
    world.stand()


@pytest.mark.parametrize("who", WHO)
def test_the_first_process_is_not_read(world: World, who: str) -> None:
    assert world.python(who, READ) == ""


@pytest.mark.parametrize("who", WHO)
def test_the_first_process_is_not_traced(world: World, who: str) -> None:
    assert world.python(who, TRACE) == ""


@pytest.mark.parametrize("who", WHO)
def test_no_signal_ends_or_stops_the_first_process(world: World, who: str) -> None:
    assert world.python(who, SIGNALS) == "sent\n"
    world.stand()


def test_all_processes_of_a_sandbox_may_be_killed_by_its_own_root(world: World) -> None:
    """But for the first: the sandbox is as its root left it, and answers."""
    script = "import os\nos.kill(-1, 9)"
    token, image = world.root.tenant_token, world.root.made["image"]
    with hostile.box(world.gates, token, image=image) as box:
        assert box.run(["python3", "-I", "-c", script])["exit_code"] == 0
        gone = box.call("GET", f"/processes/{box.EXEC_ID}").json()
        assert (gone["state"], gone["result"]["signal"]) == ("ended", 9)
        assert box.call("GET", "/info").json()["boot_id"] == box.made["boot_id"]
    world.stand()


@pytest.mark.parametrize("who", WHO)
def test_its_port_is_nobody_elses(world: World, who: str) -> None:
    assert world.python(who, REBIND, str(PORT)) == ""


WRITE = """
import errno, os
def attempt(what, act):
    try:
        act()
        print("done:", what)
    except OSError as error:
        print(what, errno.errorcode[error.errno])
attempt("make", lambda: open("/.sandman/app/x", "w"))
attempt("open", lambda: os.open("/.sandman/app/__main__.pyc", os.O_WRONLY))
attempt("move", lambda: os.rename("/.sandman", "/gone"))
attempt("delete", lambda: os.unlink("/.sandman/bin/python3"))
attempt("chmod", lambda: os.chmod("/.sandman/bin/python3", 0o777))
"""
WRITTEN = {
    "root": "make EROFS\nopen EROFS\nmove EBUSY\ndelete EROFS\nchmod EROFS\n",
    "nobody": "make EROFS\nopen EACCES\nmove EACCES\ndelete EROFS\nchmod EROFS\n",
}


@pytest.mark.parametrize("who", WHO)
def test_its_files_are_not_changed(world: World, who: str) -> None:
    assert world.python(who, WRITE) == WRITTEN["root" if who == "root" else "nobody"]


FLOOD = """
import socket, time
held = []
for number in range(400):
    try:
        one = socket.create_connection(("127.0.0.1", PORT), timeout=1)
        one.sendall(b"POST /v1/exec HTTP/1.1\\r\\nContent-Length: 1000000000\\r\\n" if number % 2 else b"")
        held.append(one)
    except OSError:
        pass
print("held", flush=True)
time.sleep(600)
""".replace("PORT", str(PORT))


@pytest.mark.parametrize("who", ["root", "restricted"])
def test_a_flood_from_within_leaves_room_for_who_comes_from_outside(world: World, who: str) -> None:
    box = world.box(who)
    flood = {"argv": ["python3", "-I", "-c", FLOOD], "exec_id": "flood", "detached": True}
    assert box.call("POST", "/processes", json=flood).status_code == 200
    try:
        time.sleep(2)
        assert box.python("print(6 * 7)") == "42\n"
        world.stand()
    finally:
        assert box.call("DELETE", "/processes/flood").status_code == 204
