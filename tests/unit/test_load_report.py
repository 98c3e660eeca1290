"""A run's numbers and its page: pure, from what was met to what somebody reads."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import charts, curve, exposition, report, summary
from loadtest.bars import milliseconds
from loadtest.exposition import Reading
from loadtest.plan import Plan
from loadtest.record import Record
from loadtest.summary import End, Run

START = 1_800_000_000
ROOT = Path(__file__).parents[2]
GATEWAY = """\
# HELP process_resident_memory_bytes Resident memory size in bytes.
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1.5e+08
process_cpu_seconds_total 12.5
sandman_requests{state="waiting"} 3.0
sandman_requests{state="claiming"} 2.0
sandman_api_writes_total{resource="pods",status="ok",verb="patch"} 10.0
sandman_api_writes_total{resource="leases",status="ok",verb="create"} 1.0
sandman_claim_writes_total{tier="warm"} 9.0
sandman_allocations_total{outcome="ok",pool="root",tier="warm"} 9.0
sandman_free_vetted 4.0
sandman_free_vetted_other 99.0
"""
API_SERVER = """\
apiserver_request_total{code="200",verb="PATCH",resource="pods"} 100
apiserver_request_total{code="200",verb="GET",resource="pods"} 50
apiserver_request_total{code="0",verb="WATCH",resource="pods"} 7
apiserver_request_total{code="429",verb="POST",resource="pods"} 2
apiserver_request_total_other{verb="PATCH"} 1000
apiserver_request_duration_seconds_bucket{verb="PATCH",le="1"} 1000
apiserver_current_inflight_requests{request_kind="mutating"} 5
process_cpu_seconds_total 80
"""


def test_of_a_gateway_is_read_what_a_report_tells():
    assert exposition.of_gateway(GATEWAY) == {
        "memory": 1.5e8, "cpu": 12.5, "requests waiting": 3, "requests claiming": 2, "writes": 11,
        "writes patch pods": 10, "writes create leases": 1, "claim writes": 9, "allocations ok": 9, "free": 4,
    }  # fmt: skip


def test_of_an_api_server_watches_are_no_calls():
    assert exposition.of_api_server(API_SERVER) == {
        "requests": 152, "writes": 102, "refused": 2, "inflight": 5, "cpu": 80,
    }  # fmt: skip


def run(scenario="hold", **more):
    record = Record()
    for number in range(100):
        at = START + number // 4
        record.took("create", 10.0 + number, at)
        record.stage("queued", 1.0, at)
        record.stage("late", 3.0, at)
        record.got(f"box-{number}", "warm" if number % 3 else "cold", at)
        record.took("exec", 5.0, at + 30)
    readings = [
        Reading(START + n, who, {"memory": 1e8 + n, "cpu": n / 2, "writes": 2.0 * n, "requests waiting": n % 5})
        for n in range(0, 60, 2)
        for who in ("gateway 0", "API server", "load")
    ]  # fmt: skip
    whole = {
        "name": f"load-{scenario}", "plan": Plan(scenario, n=100),
        "target": {"urls": ["https://127.0.0.1:1"], "pool": "root", "image": None, "tenants": {"a": 3.0, "b": 1.0}},
        "phases": [("arrive", START), ("work", START + 1), ("hold", START + 30), ("over", START + 60)],
        "ended": START + 61.0, "record": record, "readings": readings, "missed": 0, "end": End(left=0, released=100),
        "machine": {"system": "Linux", "processor": "x", "cores": 2, "python": "Python", "load": "1"},
        **more,
    }  # fmt: skip
    return Run(**whole)


def told(one):
    document = summary.document(one)
    document["record"] = one.record.document()
    document["readings"] = [list(reading) for reading in one.readings]
    return json.loads(json.dumps(document))


def test_calls_programs_and_sandboxes_are_told_in_numbers():
    document = told(run())
    create = document["calls"]["create"]
    assert (create["count"], create["errors"], create["retries"]) == (100, 0, 0)
    assert create["p50"] == pytest.approx(59, rel=0.02)
    assert create["max"] == 109
    assert create["per_s"] == 4.0
    assert document["tiers"] == {"cold": 34, "warm": 66}
    gateway = document["programs"]["gateway 0"]
    assert gateway["memory_most"] == 1e8 + 58
    assert gateway["cores_mean"] == 0.5
    assert (gateway["writes"], gateway["writes_a_sandbox"]) == (116, 1.16)


def met(document):
    return {one["what"]: one["is_met"] for one in document["bars"]}


def test_what_must_hold_anywhere_is_held_apart_from_times():
    one = run()
    assert all(met(told(one)).values())
    one.record.failed("exec", "oom", "it was killed", START + 5)
    one.record.got("box-1", "warm", START + 5)
    one.end.left = 3
    failed = {one["what"] for one in told(one)["bars"] if not one["is_met"]}
    assert failed == {
        "errors that callers were left with", "sandboxes handed over twice", "sandboxes left at the end",
    }  # fmt: skip
    assert all(bar["must"] for bar in told(one)["bars"] if bar["what"] in failed)


@pytest.mark.parametrize(("n", "slow_ms", "is_met"), [(300, 1400, True), (300, 1600, False), (1000, 1600, True)])  # fmt: skip
def test_a_burst_is_measured_by_its_size(n, slow_ms, is_met):
    one = run("burst", plan=Plan("burst", n=n))
    for _ in range(10):
        one.record.took("create", slow_ms, START)
    assert met(told(one))["allocation, p99"] is is_met


@pytest.mark.parametrize(("gone_s", "is_met"), [(149.0, True), (151.0, False), (None, False)])
def test_abandoned_sandboxes_are_to_be_gone_in_time(gone_s, is_met):
    one = run("abandon", plan=Plan("abandon", ttl_s=120), end=End(left=0, gone_s=gone_s))
    assert met(told(one))["all reclaimed after the last word"] is is_met


@pytest.mark.parametrize(
    ("served", "is_met"), [((75, 25), True), ((50, 50), False), ((0, 0), False)]
)
def test_tenants_are_to_be_served_by_their_weights(served, is_met):
    one = run("multi")
    one.record.counters.update({"served a": served[0], "served b": served[1]})
    assert met(told(one))["share of a while all wait"] is is_met


def test_a_churn_tells_what_it_would_make_in_a_month():
    one = run("churn", plan=Plan("churn", times=1, seconds=59))
    one.record.counters["campaigns"] = 35
    churn = told(one)["churn"]
    assert churn["campaigns_per_s"] == pytest.approx(35 / 59, abs=0.001)
    assert churn["sandboxes_a_month"] == pytest.approx(100 / 59 * 30 * 86400, rel=0.001)
    assert met(told(one))["campaigns a second"]


class Page(HTMLParser):
    """What a browser would have to fetch, and whether all that opens is closed."""

    EMPTY = ("meta", "path", "circle", "link", "img", "br", "input")

    def __init__(self, text):
        super().__init__()
        self.fetched, self.open, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.fetched += [tag] if tag in ("script", "link", "iframe", "img") else []
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("scenario", ["burst", "ramp", "hold", "churn", "multi", "abandon"])
def test_a_page_is_whole_and_fetches_nothing(scenario):
    one = run(scenario, plan=Plan(scenario, n=100))
    one.record.failed("exec", "oom", "<script>alert(1)</script>", START + 5)
    text = report.page(told(one))
    page = Page(text)
    assert page.fetched == []
    assert page.open == []
    assert not re.search(r"url\(|@import|//[a-z]", report.STYLE)
    assert "prefers-color-scheme:dark" in text
    for title in (
        "create, latency",
        "by tier",
        "Errors a second",
        "Memory of gateways",
        "API server: requests",
    ):
        assert title in page.text
    assert "<script>alert(1)</script>" in page.text


def test_a_page_of_a_run_that_made_nothing_is_one():
    text = report.page(told(run(record=Record(), readings=[], end=End())))
    assert "not known" in Page(text).text


def test_each_chart_is_sound_and_within_its_frame():
    text = report.page(told(run()))
    drawings = re.findall(r"<svg .*?</svg>", text)
    assert len(drawings) >= 10
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        assert root.get("aria-label")
        for circle in root.iter("circle"):
            assert charts.LEFT - 1 <= float(circle.get("cx")) <= charts.WIDTH
            assert 0 <= float(circle.get("cy")) <= charts.HEIGHT


@given(st.floats(0, 1e6), st.floats(0.001, 1e6))
def test_ticks_are_few_round_and_cover_all(low, width):
    found = charts.ticks(low, low + width)
    assert found[0] <= low + 1e-6 * width
    assert found[-1] >= low + width * (1 - 1e-6)
    assert 2 <= len(found) <= 9
    assert found == sorted(found)


@given(st.floats(0.01, 1e5), st.floats(1.1, 1e5))
def test_decades_cover_all(low, factor):
    found = charts.decades(low, low * factor)
    assert found[0] <= low * 1.001
    assert found[-1] * 1.001 >= low * factor
    assert found == sorted(found)


def test_a_line_has_gaps_where_nothing_was_met():
    assert charts.parts([(0, 1.0), (1, None), (2, 3.0), (3, 4.0)]) == [
        [(0, 1.0)],
        [(2, 3.0), (3, 4.0)],
    ]
    assert charts.chart("none", [charts.Series("x", [(0, None)])], show=str, show_x=str) == ""


def test_several_runs_make_a_curve_with_its_ratio(tmp_path, capsys):
    few, many = told(run()), told(run())
    many["sandboxes"]["handed"] = 11_858
    many["calls"]["exec"]["p50"] = few["calls"]["exec"]["p50"] * 1.4
    paths = []
    for number, document in enumerate((many, few)):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(document))
    out = tmp_path / "curve.html"
    assert curve.main("curve", [*map(str, paths), "--out", str(out)]) == 0
    text = Page(out.read_text()).text
    assert "1.40 (met), bar 1.5" in text
    assert "11,858" in text
    assert curve.ratio_of([few]) is None
    assert curve.main("report", [str(paths[0])]) == 0
    assert "exec, latency" in (tmp_path / "0.html").read_text()
    assert capsys.readouterr().out.count("\n") == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (0.5, "0.5 ms"), (10.0, "10 ms"), (123.4, "123 ms"), (1234, "1.23 s"), (3000, "3 s"), (59_949, "59.9 s")],
)  # fmt: skip
def test_times_are_told_as_people_read_them(value, text):
    assert milliseconds(value) == text


def members(value, prefix=""):
    """Names in a document that mean the same in each run."""
    for name, one in value.items():
        yield prefix + name
        if isinstance(one, dict) and name in ("sandboxes", "machine", "target", "churn"):
            yield from members(one, f"{name}.")


@pytest.mark.parametrize("scenario", ["hold", "churn", "multi"])
def test_each_member_of_the_document_is_documented(scenario):
    documented = (ROOT / "docs/loadtest.md").read_text()
    document = told(run(scenario, plan=Plan(scenario, n=100)))
    for name in members(copy.deepcopy(document)):
        assert f"`{name}`" in documented, name
    for table in ("calls", "programs"):
        for name in next(iter(document[table].values())):
            assert f"`{name}`" in documented, name


def test_each_flag_is_documented():
    documented = (ROOT / "docs/loadtest.md").read_text()
    flags = re.findall(r'"(--[a-z-]+)"', (ROOT / "loadtest/options.py").read_text())
    plan = [f"--{name.replace('_', '-')}" for name in Plan("hold").document() if name != "users"]
    assert len(plan) > 10
    for flag in [*flags, *plan]:
        assert f"`{flag}" in documented, flag
