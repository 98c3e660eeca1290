"""`sandman port-forward`: what is wrong before anything is forwarded."""

from __future__ import annotations

import socket

import click
import pytest

from sandman.cli.forward import Pair, Ports


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("8000", (8000, 8000)), ("8080:80", (8080, 80)), (":3000", (0, 3000)), ("0:3000", (0, 3000)), (Pair(1, 2), (1, 2)),
    ],
)  # fmt: skip
def test_ports(text, pair):
    assert Ports().convert(text, None, None) == pair


@pytest.mark.parametrize("text", ["", "x", "70000", "8080:", "1:2:3", "-1", "8080:0", "01"])
def test_what_is_no_port(text):
    with pytest.raises(click.BadParameter, match="any port here"):
        Ports().convert(text, None, None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["box", "99999"], "99999"),
        (["--address", "localhost", "box", "80"], "is no IP address"),
        (["box", *map(str, range(8000, 8033))], "32 ports at most"),
    ],
)
def test_wrong_usage(cli, arguments, says):
    done = cli("port-forward", *arguments)
    assert (done.exit_code, says in done.stderr) == (2, True)


def test_a_sandbox_that_is_not_there(cli):
    done = cli("port-forward", "nope", "80")
    assert done.exit_code == 125
    assert "sandman ls shows the sandboxes that there are" in done.stderr


def test_a_port_in_use_is_told_with_a_way_out(cli, gateway):
    assert cli("run", "--keep", "true").exit_code == 0
    (box,) = gateway.sandboxes
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli("port-forward", box, f"{port}:80")
    assert done.exit_code == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert ":80" in done.stderr


def test_who_lets_others_in_is_told_so(cli):
    done = cli("port-forward", "--address", "0.0.0.0", "nope", "80")
    assert "whoever reaches 0.0.0.0 reaches the sandbox, as you" in done.stderr
