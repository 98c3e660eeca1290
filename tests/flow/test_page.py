"""The page as it is served: files with a strict policy, and the numbers that it shows."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gateway.routes import page
from tests.fakes.daemons import answer, says, scripted
from tests.flow.test_gateway import follower, replica

FILES = Path(page.__file__).parents[1] / "page"
OWN = sorted(path for path in FILES.iterdir() if path.is_file())


@pytest.mark.parametrize("name", ["", *(path.name for path in OWN)])
async def test_its_files_are_served_to_anybody_with_a_strict_policy(bed, name):
    got = await bed.client.get(f"/ui/{name}")
    assert (got.status_code, got.content) == (200, (FILES / (name or page.INDEX)).read_bytes())
    policy = got.headers["content-security-policy"]
    for part in (
        "default-src 'none'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ):
        assert part in policy.split("; ")
    assert "unsafe" not in policy
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in got.headers
    assert got.headers["content-type"].startswith(page.TYPES[Path(name or page.INDEX).suffix])
    again = await bed.client.get(f"/ui/{name}", headers={"if-none-match": got.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_whoever_types_the_address_alone_is_led_there(bed):
    for path in ("/", "/ui"):
        got = await bed.client.get(path)
        assert (got.status_code, got.headers["location"]) == (307, "/ui/")
    for name in (
        "nothing.js",
        "vendor/xterm.LICENSE",
        "vendor/PACKAGES.json",
        "../routes/page.py",
        "%2e%2e/app.py",
    ):
        got = await bed.client.get("/", extensions={"target": f"/ui/{name}".encode()})
        assert (got.status_code, got.json()["reason"]) == (404, "not_found")
    assert (await bed.client.post("/ui/")).status_code == 405


class Outline(HTMLParser):
    """Elements with their attributes, and the ids that labels and descriptions point to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.inline = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.found and self.found[-1][0] in {"script", "style"}:
            self.inline += data.strip()


def test_nothing_in_it_is_inline_or_of_others_and_what_is_pointed_to_is_there():
    outline = Outline((FILES / page.INDEX).read_text())
    assert outline.inline == ""
    ids = [given["id"] for _, given in outline.found if "id" in given]
    assert len(ids) == len(set(ids))
    for tag, given in outline.found:
        assert not [name for name in given if name == "style" or name.startswith("on")], tag
        for name in ("href", "src"):
            place = given.get(name, "")
            assert place.startswith("#") or not place or (FILES / place).is_file(), place
        for name in ("for", "aria-labelledby", "aria-describedby"):
            assert set(given.get(name, "").split()) <= set(ids), given
    labelled = {given.get("for") for tag, given in outline.found if tag == "label"}
    assert {given["id"] for tag, given in outline.found if tag == "input"} <= labelled


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_its_files_ask_nobody_else_and_make_no_markup_of_text(path):
    text = path.read_text()
    places = set(re.findall(r"\w+://[^\s\"'`]*", text))
    assert places <= {"http://www.w3.org/2000/svg", "wss://${location.host}${this.path}/processes/${this.id}/terminal?${query}"}  # fmt: skip
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|cookie\b", text)  # fmt: skip


def test_every_contrast_of_its_colours_is_enough():
    """WCAG 2.2, 1.4.3: 4.5 for text; in both schemes."""
    light, dark = re.findall(r":root \{(.*?)\}", (FILES / "page.css").read_text(), re.DOTALL)
    for scheme in (light, dark):
        colour = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", scheme))
        pairs = [(text, ground) for text in ("text", "soft") for ground in ("card", "ground")]
        pairs += [(kind, f"{kind}-ground") for kind in ("good", "warn", "bad", "usual")]
        pairs += [("on-accent", "accent"), ("bad", "card"), ("accent", "card")]
        for text, ground in pairs:
            assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = [
            p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
        ]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


async def test_the_overview_tells_a_tenant_of_itself_and_of_no_other(bed):
    made = await bed.allocate("acme")
    told = {}
    for tenant in ("acme", "zeta"):
        got = await bed.client.get("/v1/overview", headers=bed.as_(tenant))
        assert got.status_code == 200
        told[tenant] = got.json()
    acme, zeta = told["acme"], told["zeta"]
    assert acme["tenant"] == {
        "name": "acme",
        "key": "acme",
        "weight": 1.0,
        "sandboxes": 1,
        "waiting": 0,
        "oldest_s": None,
        "limits": {
            "concurrent": None,
            "eval_reserved": None,
            "rate": None,
            "cpu": None,
            "memory": None,
        },
    }
    [one] = acme["allocations"]
    assert (one["tier"], one["total_ms"] >= one["queued_ms"]) == (made["tier"], True)
    assert one["at"] <= acme["now"]
    assert acme["queue"] == {"waiting": 0, "claiming": 0, "cold": 0}
    assert (zeta["tenant"]["sandboxes"], zeta["allocations"]) == (0, [])
    # By another replica, which knows nothing of it itself.
    async with replica(bed, follower(bed)) as client:
        got = await client.get("/v1/overview", headers=bed.as_("acme"))
        assert got.json()["allocations"] == acme["allocations"]
    own = {"authorization": f"Bearer {made['token']}"}
    assert (await bed.client.get("/v1/overview", headers=own)).status_code == 403
    assert (await bed.client.get("/v1/overview")).status_code == 401


async def test_what_a_sandbox_serves_is_never_of_the_pages_origin(bed):
    """Its files and its ports, whatever they say of themselves."""
    made = await bed.allocate()
    path = f"/v1/sandboxes/{made['id']}"
    html = b"<script>fetch('/v1/sandboxes')</script>"
    write = {"path": "/tmp/sandman-page-test.html"}
    await bed.client.put(f"{path}/files", params=write, content=html, headers=bed.as_("acme"))
    lines = (b"Content-Type: text/html", b"Content-Security-Policy: default-src *")
    async with scripted() as inside:
        inside.script = says(answer(html, *lines))
        for place in ("files?path=/tmp/sandman-page-test.html", f"ports/{inside.port}/"):
            got = await bed.client.get(f"{path}/{place}", headers=bed.as_("acme"))
            assert (got.status_code, got.content) == (200, html)
            assert got.headers["content-security-policy"] == "sandbox"
            assert got.headers["x-content-type-options"] == "nosniff"
    await bed.client.delete(f"{path}/files", params=write, headers=bed.as_("acme"))
