"""What `sandman top` shows, and how it goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from sandman import errors
from sandman.cli import standing
from sandman.sync import OverviewInfo, PoolInfo, SandboxInfo
from tests.unit.client.fake_gateway import TOKEN, problem
from tests.unit.client.test_login import until

AT = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
ENDED = {"reason": "oom", "detail": "its memory\x1b[2J ran out", "at": "2026-11-30T11:00:00Z"}
SEEN = standing.Standing(
    at=AT,
    gateway="https://gateway:8443",
    overview=OverviewInfo(
        tenant="acme", sandboxes=2, waiting=1, oldest_s=75.0,
        requests=[{"pool": "root", "image": "img:1", "run": None, "waited_s": 75.0}],
        weight=2.0, queue={"waiting": 4}, limits={"concurrent": 8, "rate": None, "cpu": 4.0, "memory": 2**31},
    ),
    pools=[
        PoolInfo(name="root", image="host", free=0, leased=4, wanted=2, max=8),
        PoolInfo(name="bad", broken="they die"),
    ],
    sandboxes=[
        SandboxInfo(id="box-1", state="ready", tier="warm", pool="root", created_at="2026-11-30T11:00:00Z"),
        SandboxInfo(id="box-2", state="starting", image="registry.example/a/very/long/name/of/an/image/indeed:tag"),
    ],
    ended=[SandboxInfo(id=f"old-{n}", state="ended", ended={**ENDED, "at": f"2026-11-30T11:{n:02}:00Z"}) for n in range(30)],
    tenants={"acme": (1, 75.0), "zeta": (12, 7300.0)},
)  # fmt: skip


def text(seen=SEEN, columns=200, rows=None) -> str:
    return "\n".join(map(standing.plain, standing.lines(seen, columns, rows)))


def test_all_that_is_to_be_seen_is_there():
    shown = text()
    for part in (
        "sandman top  https://gateway:8443  tenant acme  12:00:00 UTC",
        "2 of 8 sandboxes (1 ready, 1 starting) · 1 waiting, longest 75s · weight 2 · 4 waiting of all tenants · cpu ≤ 4 · memory ≤ 2.0Gi",
        "root  █████░░░░░  4       0     2       0         8    host   ok",
        "broken: they die",
        "75s    root  img:1  -",
        "zeta    12       2h",
        "  registry.examp…",
        "/image/indeed:tag  -",
    ):
        assert part in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["box-1", "ready", "warm", "root", "60m"] in [row[:5] for row in rows]


def test_of_those_that_are_over_the_latest_are_shown_with_why():
    rows = [line for line in text().splitlines() if line.startswith("old-")]
    assert len(rows) == standing.MOST_ENDED
    assert rows[0].startswith("old-29")
    assert rows[0].endswith("oom its memory?[2J ran out")


def test_what_others_wrote_is_letters_on_this_terminal():
    assert "\x1b[2J" not in "".join(standing.lines(SEEN, 200, None))
    bent = "\x1b]0;x\x07\u202e\r\n\x9b2J\x1b[0K"
    seen = standing.Standing(
        at=AT, gateway=bent, error=bent, tenants={bent: (1, 2.0)}, pools=[PoolInfo(name=bent, image=bent, broken=bent)],
        overview=OverviewInfo(
            tenant=bent, sandboxes=1, waiting=1, oldest_s=1.0, requests=[dict.fromkeys(("pool", "image", "run"), bent)],
            weight=1.0, queue={"waiting": 1}, limits={},
        ),
        sandboxes=[
            SandboxInfo(
                id=bent, state=bent, tier=bent, image=bent, node=bent, pool=bent, run=bent, created_at=bent,
                ended=dict.fromkeys(("reason", "detail", "at"), bent),
            )
        ],
    )  # fmt: skip
    shown = [standing.plain(line) for line in standing.lines(seen, 1000, None)]
    assert [line for line in shown if not line.isprintable()] == []
    assert "".join(shown).count("?]0;x???") > 14


@pytest.mark.parametrize("columns", [20, 40, 79])
@pytest.mark.parametrize("rows", [5, 12, 24])
def test_a_screen_is_never_left(columns, rows):
    lines = standing.lines(SEEN, columns, rows)
    assert len(lines) == rows
    assert max(len(standing.plain(line)) for line in lines[:-1]) <= columns
    assert "more lines" in lines[-1]
    for line in lines:
        assert re.findall(r"\x1b\[[0-9]+m", line)[-1:] in ([], [standing.PLAIN])


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0.0s"), (3.26, "3.3s"), (45, "45s"), (300, "5m"), (7300, "2h"), (400_000, "5d")],
)
def test_lengths_of_time(seconds, shown):
    assert standing.span(seconds) == shown


def test_queues_by_tenant_are_read_of_the_metrics():
    metrics = """# HELP sandman_queue_length Requests
sandman_queue_length{tenant="acme"} 3.0
sandman_queue_length{tenant="(other)"} 1.0
sandman_queue_age_seconds{tenant="acme"} 12.5
sandman_pods{pool="root",state="leased"} 1.0
"""
    assert standing.tenants(metrics) == {"(other)": (1, 0.0), "acme": (3, 12.5)}


# --- the command ---


def test_once_and_as_json(cli, gateway):
    assert cli("run", "--keep", "true").exit_code == 0
    shown = cli("top", "--once")
    assert (shown.exit_code, "\x1b" in shown.stdout) == (0, False)
    assert "1 of 8 sandboxes" in shown.stdout
    [line] = cli("top", "--once", "--json").stdout.splitlines()
    told = json.loads(line)
    assert told["overview"]["requests"][0]["waited_s"] == 3.5
    assert [one["name"] for one in told["pools"]] == ["root"]
    assert [one["id"] for one in told["sandboxes"]] == [*gateway.sandboxes]
    assert (told["ended"], told["tenants"], told["error"]) == ([], None, None)


def test_what_cannot_be_seen_is_an_error_when_it_is_looked_for_once(cli, gateway):
    gateway.plan("GET /v1/overview", problem(errors.UnreachableError("away")))
    assert cli("top", "--once").exit_code == 125
    gateway.plan("GET /v1/overview", problem(errors.ForbiddenError("no")))
    assert cli("top").exit_code == 125
    failed = cli("top", "--once", "--metrics", "http://127.0.0.1:1/metrics")
    assert (failed.exit_code, "--metrics http://127.0.0.1:1/metrics" in failed.stderr) == (1, True)


def test_it_goes_on_through_a_restart_of_the_gateway_and_ends_by_an_interrupt(gateway):
    gateway.plan("GET /v1/pools", problem(errors.UnreachableError("away for a moment")))
    one = subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "sandman.cli", "top", "--json", "--interval", "0.2"],
        env={**os.environ, "SANDMAN_URL": gateway.url, "SANDMAN_TOKEN": TOKEN},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert one.stdout is not None
    looks = [json.loads(one.stdout.readline()) for _ in range(3)]
    one.send_signal(signal.SIGINT)
    _, err = one.communicate(timeout=25)
    assert (one.returncode, err) == (130, b"")
    assert [look["error"] for look in looks] == ["unreachable: away for a moment", None, None]
    assert [len(look["pools"]) for look in looks] == [0, 1, 1]


def test_on_a_terminal_it_has_a_screen_of_its_own_and_gives_the_old_one_back(gateway):
    ours, theirs = os.openpty()
    one = subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "sandman.cli", "top", "--interval", "0.2"],
        env={**os.environ, "SANDMAN_URL": gateway.url, "SANDMAN_TOKEN": TOKEN},
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = until(ours, b"\x1b[J\x1b[H")
    one.send_signal(signal.SIGINT)
    seen += until(ours, b"\x1b[?1049l")
    assert one.wait(25) == 130
    os.close(ours)
    assert seen.startswith(b"\x1b[?1049h\x1b[?25l\x1b[H")
    assert b"Traceback" not in seen
