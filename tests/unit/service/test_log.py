"""Logs are one JSON object a line, whoever writes them, and hold no secrets."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from sandman.service import log


@pytest.fixture(autouse=True)
def _restore():
    root = logging.getLogger()
    handlers, level, before = root.handlers, root.level, structlog.get_config()
    yield
    root.handlers, root.level = handlers, level
    structlog.configure(**before)


def fail(words: str) -> None:
    raise ValueError(words)


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_both_kinds_of_loggers_write_json():
    stream = io.StringIO()
    log.configure("info", stream=stream)
    structlog.get_logger().info("claimed", sandbox="a-1", ms=3.5)
    logging.getLogger("sandman.https").warning("accept failed: %s", "why")
    first, second = lines(stream)
    assert (first["event"], first["sandbox"], first["level"]) == ("claimed", "a-1", "info")
    assert (second["event"], second["level"]) == ("accept failed: why", "warning")
    assert first["timestamp"].endswith("Z")


def test_the_level_holds_for_both():
    stream = io.StringIO()
    log.configure("warning", stream=stream)
    structlog.get_logger().info("quiet")
    logging.getLogger("x").info("quiet")
    assert lines(stream) == []


def test_secrets_are_hidden_by_their_names():
    stream = io.StringIO()
    log.configure(stream=stream)
    structlog.get_logger().info("x", token="t", Authorization="Bearer t", api_key_hash="h", pod="p")
    [line] = lines(stream)
    assert line["token"] == line["Authorization"] == line["api_key_hash"] == log.HIDDEN
    assert line["pod"] == "p"


def test_exceptions_are_structured():
    stream = io.StringIO()
    log.configure(stream=stream)
    try:
        fail("why")
    except ValueError:
        logging.getLogger("x").exception("failed")
    [line] = lines(stream)
    assert line["exception"][0]["exc_type"] == "ValueError"


def test_local_variables_stay_out_of_tracebacks():
    stream = io.StringIO()
    log.configure(stream=stream)
    hidden = "s3cret" + "-value"
    try:
        fail(str(len(hidden)))
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert hidden not in stream.getvalue()


def test_a_person_gets_text():
    stream = io.StringIO()
    stream.isatty = lambda: True
    log.configure(stream=stream)
    structlog.get_logger().info("claimed")
    assert "claimed" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_an_unknown_level_is_an_error():
    with pytest.raises(ValueError, match="loud"):
        log.configure("loud")
