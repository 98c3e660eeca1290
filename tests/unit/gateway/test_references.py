"""Image references: one full form, who may have which, where they are pulled from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import SettingError, Settings
from gateway.references import (
    Mirror,
    canonical,
    is_allowed,
    parse_mirrors,
    rewrite,
)
from gateway.routes import parse
from sandman.apikeys import check_patterns

DIGEST = "sha256:" + "a" * 64

component = st.from_regex(r"[a-z0-9]{1,6}(-[a-z0-9]{1,3})?", fullmatch=True)
hosts = st.sampled_from(
    ["", "docker.io/", "r.example/", "r.example:5000/", "localhost/", "[::1]:5/"]
)
tags = st.sampled_from(["", ":1", ":v1.2-rc", f"@{DIGEST}", f":1@{DIGEST}"])
references = st.builds(
    lambda host, path, tag: host + "/".join(path) + tag,
    hosts, st.lists(component, min_size=1, max_size=3), tags,
)  # fmt: skip


@pytest.mark.parametrize(
    ("given_", "full"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("debian:12", "docker.io/library/debian:12"),
        ("docker.io/debian", "docker.io/library/debian:latest"),
        ("index.docker.io/a/b:1", "docker.io/a/b:1"),
        ("a/b", "docker.io/a/b:latest"),
        ("localhost/b", "localhost/b:latest"),
        ("127.0.0.1:5000/b:1", "127.0.0.1:5000/b:1"),
        (f"r.example/b:1@{DIGEST}", f"r.example/b@{DIGEST}"),
    ],
)
def test_the_full_form(given_, full):
    assert canonical(given_) == full


@given(references)
def test_the_full_form_is_a_reference_and_its_own_full_form(reference):
    full = canonical(reference)
    assert canonical(full) == full
    assert parse.image(full) == full


@pytest.mark.parametrize(
    ("pattern", "image", "is_in"),
    [
        ("**", "anything.example/a/b:1", True),
        ("r.example/team/*", "r.example/team/a:1", True),
        ("r.example/team/*", f"r.example/team/a@{DIGEST}", True),
        ("r.example/team/*", "r.example/team/a/b:1", False),
        ("r.example/team/**", "r.example/team/a/b:1", True),
        ("r.example/team/*", "r.example/teams/a:1", False),
        ("r.example/team/*", "evil.example/r.example/team/a:1", False),
        ("r.example/a:1", "r.example/a:1", True),
        ("r.example/a:1", "r.example/a:12", False),
        ("r.example/a:v*", "r.example/a:v2", True),
        # The tag beside a digest says nothing: it must not let an image in.
        ("r.example/a:1", f"r.example/a:1@{DIGEST}", False),
        (f"r.example/a@{DIGEST}", f"r.example/a:1@{DIGEST}", True),
        ("debian", "docker.io/library/debian:12", True),
        ("debian", "debian", True),
        ("debian", "r.example/debian", False),
        ("team/*", "docker.io/team/a:1", True),
        ("*.example/a", "r.example/a:1", True),
        ("r.example:5000/*", "r.example:5000/a:1", True),
        ("r.example/*", "rxexample/a:1", False),
        ("r.example/a", "r.example/a-b:1", False),
    ],
)
def test_a_pattern_lets_in_what_it_says_and_nothing_else(pattern, image, is_in):
    assert is_allowed(image, check_patterns([pattern])) is is_in


@given(references)
def test_an_image_is_allowed_by_itself_by_everything_and_not_by_nothing(reference):
    assert is_allowed(reference, None)
    assert is_allowed(reference, ("**",))
    assert is_allowed(reference, (canonical(reference),))
    assert not is_allowed(reference, ())


@pytest.mark.parametrize("bad", ["x", [1], ["*"], ["a b"], [""], ["a" * 300], None])
def test_what_is_no_allowlist_is_refused(bad):
    with pytest.raises(ValueError, match="image"):
        check_patterns(bad)


@pytest.mark.parametrize(
    ("image", "pulled"),
    [
        ("debian:12", "mirror.example/hub/library/debian:12"),
        ("r.example/a:1", "near.example/a:1"),
        ("r.example/deep/a:1", "near.example/special/a:1"),
        (f"r.example/a:1@{DIGEST}", f"near.example/a@{DIGEST}"),
        ("r.example.evil/a:1", "r.example.evil/a:1"),
        ("r.example/deeper/a:1", "near.example/deeper/a:1"),
        ("other.example/a", "other.example/a"),
    ],
)
def test_the_most_exact_mirror_is_taken(image, pulled):
    rules = [
        "docker.io=mirror.example/hub", "r.example=near.example",
        "r.example/deep=near.example/special",
    ]  # fmt: skip
    assert rewrite(image, parse_mirrors(rules)) == pulled


def test_docker_hub_has_one_name_in_rules():
    assert parse_mirrors(["index.docker.io = m.example/"]) == (Mirror("docker.io", "m.example"),)


@pytest.mark.parametrize(
    "rules", [["docker.io"], ["=m.example"], ["a="], ["a=b c"], ["a=b", "a=c"]]
)
def test_what_is_no_mirror_rule_is_refused(rules):
    with pytest.raises(ValueError, match="mirror"):
        parse_mirrors(rules)
    with pytest.raises(SettingError, match="SANDMAN_GATEWAY_IMAGE_MIRRORS"):
        Settings.from_env({"SANDMAN_GATEWAY_IMAGE_MIRRORS": ",".join(rules)})


def test_mirrors_are_a_setting():
    made = Settings.from_env({"SANDMAN_GATEWAY_IMAGE_MIRRORS": "docker.io=m.example/hub"})
    assert made.image_mirrors == (Mirror("docker.io", "m.example/hub"),)
    assert Settings().image_mirrors == ()


@given(references)
def test_a_mirrored_name_is_still_a_reference(reference):
    assert parse.image(rewrite(reference, parse_mirrors(["docker.io=m.example:5000/hub"])))
