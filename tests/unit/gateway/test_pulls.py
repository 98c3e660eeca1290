"""Failures of a pull by what kubelet 1.36 and containerd 2.2 say: texts of theirs, told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.provider import endings

IMAGE = "r.example/team/task:1"
RPC = f'Failed to pull image "{IMAGE}": rpc error: code = '
PULL = f'desc = failed to pull and unpack image "{IMAGE}": '
RESOLVE = PULL + f'failed to resolve reference "{IMAGE}": '
HEAD = "unexpected status from HEAD request to https://r.example/v2/team/task/manifests/1: "

SAID = [
    ("NotFound " + RESOLVE + f"{IMAGE}: not found", "missing", "image_not_found"),
    ("NotFound desc = failed to resolve image: " + f"{IMAGE}: not found", "missing", "image_not_found"),
    # Through containerd's transfer service.
    ("Unknown desc = failed to resolve image: unexpected status from HEAD request to "
     "http://127.0.0.1:43485/v2/team/task/manifests/1: 429 Too Many Requests", "throttled", "image_pull"),
    ("Unknown desc = failed to resolve image: pull access denied, repository does not exist or may require "
     "authorization: authorization failed: no basic auth credentials", "denied", "image_denied"),
    ("Unknown desc = failed to resolve image: failed to do request: Head "
     '"https://no.such.invalid/v2/a/manifests/1": dial tcp: lookup no.such.invalid on 10.255.255.53:53: '
     "no such host", "host", "image_not_found"),
    ("Unknown " + PULL + "manifest unknown: manifest unknown", "missing", "image_not_found"),
    ("Unknown " + PULL + "NAME_UNKNOWN: repository name not known to registry: name unknown",
     "missing", "image_not_found"),
    ("NotFound " + PULL + "failed to copy: could not fetch content descriptor sha256:ab "
     "(application/vnd.oci.image.layer.v1.tar+gzip) from remote: not found", "missing", "image_not_found"),
    ("NotFound " + PULL + "no match for platform in manifest sha256:ab: not found",
     "platform", "image_not_found"),
    ("InvalidArgument " + RESOLVE + "invalid reference format", "invalid", "image_not_found"),
    ("Unknown " + RESOLVE + "not implemented: media type \"application/vnd.docker.distribution.manifest."
     "v1+prettyjws\" is no longer supported since containerd v2.0, please rebuild the image as "
     "\"application/vnd.docker.distribution.manifest.v2+json\"", "invalid", "image_not_found"),
    ("Unknown " + RESOLVE + "pull access denied, repository does not exist or may require authorization: "
     "server message: insufficient_scope: authorization failed", "denied", "image_denied"),
    ("Unknown " + RESOLVE + "pull access denied, repository does not exist or may require authorization: "
     "authorization failed: no basic auth credentials", "denied", "image_denied"),
    ("Unknown " + RESOLVE + "failed to authorize: failed to fetch anonymous token: unexpected status from "
     "GET request to https://r.example/token?scope=repository%3Ateam%2Ftask%3Apull&service=r.example: "
     "401 Unauthorized", "denied", "image_denied"),
    ("Unknown " + RESOLVE + HEAD + "403 Forbidden", "denied", "image_denied"),
    ("Unknown " + RESOLVE + HEAD + "401 Unauthorized", "denied", "image_denied"),
    ("Unknown " + RESOLVE + HEAD + "429 Too Many Requests", "throttled", "image_pull"),
    ("Unknown " + PULL + "failed to copy: httpReadSeeker: failed open: unexpected status code "
     "https://registry-1.docker.io/v2/library/x/manifests/sha256:ab: 429 Too Many Requests - Server message: "
     "toomanyrequests: You have reached your unauthenticated pull rate limit. "
     "https://www.docker.com/increase-rate-limit", "throttled", "image_pull"),
    ("Unknown " + RESOLVE + "failed to authorize: failed to fetch oauth token: unexpected status from POST "
     "request to https://auth.docker.io/token: 429 Too Many Requests", "throttled", "image_pull"),
    ("DeadlineExceeded " + RESOLVE + 'failed to do request: Head "https://r.example/v2/team/task/manifests/1": '
     "dial tcp 10.0.0.1:443: i/o timeout", "timeout", "image_pull"),
    ("Unknown " + RESOLVE + 'failed to do request: Head "https://r.example/v2/x": net/http: TLS handshake '
     "timeout", "timeout", "image_pull"),
    ("Canceled " + PULL + "context canceled", "timeout", "image_pull"),
    ("DeadlineExceeded desc = context deadline exceeded", "timeout", "image_pull"),
    ("Unknown " + RESOLVE + 'failed to do request: Head "https://r.example/v2/x": tls: failed to verify '
     "certificate: x509: certificate signed by unknown authority", "tls", "image_pull"),
    ("Unknown " + RESOLVE + 'failed to do request: Head "https://r.example/v2/x": http: server gave HTTP '
     "response to HTTPS client", "tls", "image_pull"),
    ("Unknown " + RESOLVE + 'failed to do request: Head "https://rr.example/v2/x": dial tcp: lookup rr.example '
     "on 10.96.0.10:53: no such host", "host", "image_not_found"),
    ("Unknown " + RESOLVE + 'failed to do request: Head "https://r.example/v2/x": dial tcp: lookup r.example '
     "on 10.96.0.10:53: server misbehaving", "network", "image_pull"),
    ("Unknown " + RESOLVE + 'failed to do request: Head "https://r.example/v2/x": dial tcp 10.0.0.1:443: '
     "connect: connection refused", "network", "image_pull"),
    ("Unknown " + PULL + "failed to copy: httpReadSeeker: failed open: unexpected EOF",
     "network", "image_pull"),
    ("Unavailable " + RESOLVE + HEAD + "503 Service Unavailable", "server", "image_pull"),
    ("Unknown " + RESOLVE + HEAD + "500 Internal Server Error", "server", "image_pull"),
    ("Unknown " + PULL + "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:ab) to "
     "overlayfs as \"extract-1\": write /var/lib/containerd/x: no space left on device",
     "disk", "image_pull"),
    ("Unknown " + PULL + "something new", "other", "image_pull"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "reason"), SAID)
def test_what_containerd_says_of_a_pull(text, kind, reason):
    ending = endings.of_image(IMAGE, ["Error: ErrImagePull", RPC + text])
    assert ending is not None
    assert (ending.facts["pull"], ending.reason) == (kind, reason)
    assert f"image {IMAGE}: " in ending.detail
    assert text in ending.detail


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('Failed to apply default image tag "r.example/Team": couldn\'t parse image name "r.example/Team": '
         "invalid reference format: repository name (Team) must be lowercase", "invalid"),
        (f'Container image "{IMAGE}" is not present with pull policy of Never', "never"),
        (f'Failed to pull image "{IMAGE}": pull QPS exceeded', "throttled"),
        (f"image pull failed for {IMAGE} because the registry is unavailable: it is away", "network"),
        (f"image pull failed for {IMAGE} because the signature validation failed: no key", "denied"),
        (f'Back-off pulling image "{IMAGE}": ErrImagePull: rpc error: code = NotFound desc = failed to pull '
         f'and unpack image "{IMAGE}": not found', "missing"),
    ],
)  # fmt: skip
def test_what_the_kubelet_says_itself(text, kind):
    image = "r.example/Team" if "Team" in text else IMAGE
    ending = endings.of_image(image, [text])
    assert ending is not None
    assert ending.facts["pull"] == kind


@pytest.mark.parametrize("evil", ["denied/429:1", "not-found:1", "x509:no-such-host", "forbidden"])
def test_the_name_of_an_image_is_no_word_of_the_registrys(evil):
    text = (
        f'Failed to pull image "{evil}": rpc error: code = Unknown desc = failed to pull and unpack image '
        f'"docker.io/{evil}": failed to resolve image: unexpected status from HEAD request to '
        f"https://registry-1.docker.io/v2/{evil}/manifests/not found: 500 Internal Server Error"
    ).replace("manifests/not found", "manifests/denied")
    ending = endings.of_image(evil, [text])
    assert ending is not None
    assert ending.facts["pull"] == "server"


def test_the_trouble_of_another_image_of_the_pod_is_not_held_against_this_one():
    """The daemon's image volume, or the placeholder's image before the swap."""
    other = (
        'Failed to pull image "r.example/daemon:1": rpc error: code = NotFound desc = x: not found'
    )
    ending = endings.of_image(IMAGE, [other])
    assert ending is not None
    assert (ending.reason, ending.facts["pull"]) == ("image_pull", "pod")
    own = RPC + "Unknown " + RESOLVE + HEAD + "429 Too Many Requests"
    both = endings.of_image(IMAGE, [other, own])
    assert both is not None
    assert both.facts["pull"] == "throttled"


def test_an_image_is_known_by_its_full_name_too():
    text = 'Failed to pull image "docker.io/library/debian:latest": x: not found'
    ending = endings.of_image("debian", [text])
    assert ending is not None
    assert ending.reason == "image_not_found"


@given(st.lists(st.text(max_size=60), max_size=4))
def test_any_text_gives_an_ending_of_the_tree_or_none(texts):
    ending = endings.of_image(IMAGE, texts)
    is_said = any("image" in text.lower() or "pull" in text.lower() for text in texts)
    assert (ending is not None) == is_said
    assert ending is None or ending.reason in {"image_pull", "image_not_found", "image_denied"}
