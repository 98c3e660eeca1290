"""Names of images: directories, archives and the machine's own root; registries over a real connection."""

from __future__ import annotations

import functools
import http.server
import json
import socket
import threading
from pathlib import Path

import httpx
import pytest

from gateway.provider.local import images
from gateway.provider.local.images import OWN, ImageError, Images
from gateway.provider.local.pulls import Pull
from sandman.images.platforms import Platform
from tests.fakes import oci
from tests.fakes.oci import Layout, file, layer

AMD = Platform()


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "platform", lambda: AMD)
    return tmp_path / "kept"


async def get(kept, path, pull=None):
    return await Images({"task:1": path}, kept, pull).get("task:1")


async def test_the_machines_own_root_has_one_name_or_several(kept, tmp_path):
    some = Images({"own": Path("/"), "a": tmp_path}, kept)
    assert await some.get("host") is OWN
    assert await some.get("own:latest") is OWN
    assert (await some.get("docker.io/library/a")).directory == tmp_path
    with pytest.raises(ImageError, match="there are: host, docker") as caught:
        await some.get("b")
    ending = caught.value.ending("b")
    assert (ending.reason, ending.facts) == ("image_not_found", {"pull": "missing"})


async def test_an_oci_archive(kept, tmp_path):
    layout = Layout([layer(file("etc/a", b"1")), layer(file("etc/b", b"2"))])
    path = layout.write(tmp_path / "image.tar")
    found = await get(kept, path)
    assert (found.env, found.workdir, found.user) == ({"GREETING": "hello"}, "/work", "")
    assert found.digest == json.loads(layout.files["index.json"])["manifests"][0]["digest"]
    assert {one.name for one in (found.directory / "etc").iterdir()} == {"a", "b"}
    # What is there is not unpacked anew.
    (found.directory / "etc/a").unlink()
    assert (await get(kept, path)).directory == found.directory
    assert [*kept.iterdir()] == [found.directory]


async def test_what_docker_saves(kept, tmp_path):
    path = oci.saved(tmp_path / "image.tar", {"x/layer.tar": layer(file("a", b"1"))})
    found = await get(kept, path)
    assert (found.directory / "a").read_text() == "1"


async def test_of_several_platforms_this_machines(kept, tmp_path):
    layout = Layout([layer(file("a", b"1"))])
    mine = json.loads(layout.files["index.json"])["manifests"][0]["digest"]
    platforms = [
        {"digest": oci.digest(b"other"), "platform": {"os": "linux", "architecture": "arm64"}},
        {"digest": mine, "platform": {"os": "linux", "architecture": "amd64"}},
    ]
    inner = layout.put(json.dumps({"manifests": platforms}).encode())
    layout.index([{"digest": inner}])
    assert (await get(kept, layout.write(tmp_path / "image.tar"))).digest == mine
    layout.index(platforms[:1] * 2)
    with pytest.raises(ImageError, match="no image for linux/amd64"):
        await get(kept, layout.write(tmp_path / "image.tar"))


def spoilt(change):
    """A layout, changed."""
    layout = Layout([layer(file("a", b"1"))])
    change(layout)
    return layout.files


def swap_blobs(layout):
    for name in layout.files:
        if name.startswith("blobs/"):
            layout.files[name] += b" "


def nested(layout):
    digest = layout.put(b'{"manifests": []}')
    for _ in range(8):
        digest = layout.put(json.dumps({"manifests": [{"digest": digest}]}).encode())
    layout.index([{"digest": digest}])


def escaping(layout):
    layout.manifest["layers"] = [{"digest": layout.put(layer(file("../../x", b"1")))}]
    layout.index([{"digest": layout.put(json.dumps(layout.manifest).encode())}])


def odd_digest(layout):
    data = json.dumps(layout.manifest).encode()
    layout.files["blobs/sha256/../../x"] = data
    layout.index([{"digest": "sha256:../../x"}])


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "neither an OCI layout"),
        ({"index.json": b"[]"}, "makes no sense"),
        ({"index.json": b"[" * 100_000}, "makes no sense"),
        ({"index.json": b"{}"}, "no image for"),
        ({"index.json": b'{"manifests": [{}]}'}, "digest"),
        ({"index.json": b'{"manifests": [{"digest": "sha256:1"}]}'}, "is not there"),
        ({"index.json": b" " * 5_000_000}, "over 4194304 bytes"),
        ({"manifest.json": b"[]"}, "several images"),
        ({"manifest.json": b'[{"Config": "../x", "Layers": []}]'}, "is not there"),
        (spoilt(swap_blobs), "not what its digest says"),
        (spoilt(nested), "no image for"),
        (spoilt(escaping), "leaves the directory"),
        (spoilt(odd_digest), "not what its digest says"),
    ],
)
async def test_a_broken_archive_is_no_image_and_leaves_nothing(kept, tmp_path, files, why):
    path = oci.archive(tmp_path / "image.tar", files)
    with pytest.raises(ImageError, match=why) as caught:
        await get(kept, path)
    assert caught.value.reason == "image_not_found"
    assert not kept.exists() or [*kept.iterdir()] == []
    assert {one.name for one in tmp_path.iterdir()} <= {"image.tar", "kept"}


async def test_a_part_that_is_a_link_is_not_there(kept, tmp_path):
    path = oci.archive(tmp_path / "image.tar", {}, {"index.json": "/etc/passwd"})
    with pytest.raises(ImageError, match="is not there"):
        await get(kept, path)


async def test_what_is_no_archive(kept, tmp_path):
    (tmp_path / "image.tar").write_bytes(b"no tar" * 1000)
    with pytest.raises(ImageError, match="it is neither an OCI layout nor what `docker save`"):
        await get(kept, tmp_path / "image.tar")
    # Its caller has given a name: where that leads is not told.
    with pytest.raises(ImageError, match="No such file or directory") as caught:
        await get(kept, tmp_path / "none.tar")
    assert str(tmp_path) not in str(caught.value)


class Site(http.server.BaseHTTPRequestHandler):
    """A registry of one image."""

    def __init__(self, layout: Layout, *args) -> None:
        self.layout = layout
        super().__init__(*args)

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if "manifests" in self.path and name == "1":
            name = json.loads(self.layout.files["index.json"])["manifests"][0]["digest"]
        data = self.layout.files.get(f"blobs/{name.replace(':', '/')}")
        self.send_response(200 if data is not None else 404)
        kind = "application/vnd.oci.image.manifest.v1+json" if "manifests" in self.path else "x/y"
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")

    def log_message(self, *args) -> None:
        """Nothing is said."""


@pytest.fixture
def site():
    layout = Layout([layer(file("a", b"1"))])
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Site, layout)
    ) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        layout.host = f"127.0.0.1:{server.server_port}"
        yield layout
        server.shutdown()
        thread.join()


async def test_an_image_of_a_registry(kept, site):
    some = Images({}, kept, functools.partial(Pull, platform=AMD))
    found = await some.get(f"{site.host}/team/task:1")
    assert (found.directory / "a").read_text() == "1"
    with pytest.raises(ImageError, match="there is none") as caught:
        await some.get(f"{site.host}/team/task:2")
    assert caught.value.ending("x").reason == "image_not_found"


async def test_a_registry_that_sends_something_else(kept, site):
    some = Images({}, kept, functools.partial(Pull, platform=AMD))
    name = f"blobs/{site.manifest['layers'][0]['digest'].replace(':', '/')}"
    good, site.files[name] = site.files[name], Layout([layer(file("b", b"2"))]).files.popitem()[1]
    with pytest.raises(ImageError):
        await some.get(f"{site.host}/team/task:1")
    assert [*kept.iterdir()] == []
    del site.files[name]
    with pytest.raises(ImageError, match="answers 404"):
        await some.get(f"{site.host}/team/task:1")
    site.files[name] = good
    assert (await some.get(f"{site.host}/team/task:1")).directory is not None


async def test_what_a_killed_gateway_had_half_unpacked_goes(kept, tmp_path):
    some = Images({}, kept)
    some.tidy()  # there may be nothing yet
    half = kept / ".0123456789abcdef/etc"
    half.mkdir(parents=True)
    half.chmod(0o500)
    whole = kept / "sha256-0"
    whole.mkdir()
    some.tidy()
    assert [*kept.iterdir()] == [whole]


async def test_a_registry_that_is_not_there_may_be_later(kept):
    some = Images({}, kept, functools.partial(Pull, platform=AMD))
    with pytest.raises(ImageError) as caught:
        await some.get("127.0.0.1:1/team/task:1")
    assert caught.value.ending("x").reason == "image_pull"
    text = str(caught.value)
    assert "its registry 127.0.0.1:1 cannot be asked" in text
    assert "there are: host (more by sandman serve --local --image" in text


def test_where_a_registry_sends_to_is_not_what_was_misspelt():
    unknown = socket.gaierror(socket.EAI_NONAME, "unknown")
    found = []
    for host in ("r.example", "auth.example"):
        error = httpx.ConnectError("x", request=httpx.Request("GET", f"https://{host}/v2/"))
        error.__cause__ = unknown
        found.append(images._unanswered(error, "r.example/task:1", "no").ending("x").reason)
    assert found == ["image_not_found", "image_pull"]


@pytest.mark.parametrize(
    ("number", "reason", "kind"),
    [
        (socket.EAI_NONAME, "image_not_found", "host"),
        (socket.EAI_AGAIN, "image_pull", "network"),
    ],
)
async def test_a_registry_that_nobody_knows_is_a_misspelt_name(
    kept, monkeypatch, number, reason, kind
):
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(number, "what the resolver says")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    some = Images({}, kept, functools.partial(Pull, platform=AMD))
    with pytest.raises(ImageError, match=r"registry-1\.docker\.io cannot be asked") as caught:
        await some.get("pyhton:3")
    ending = caught.value.ending("pyhton:3")
    assert (ending.reason, ending.facts) == (reason, {"pull": kind})
