"""What an image runs, asked of a registry on a real socket with the user's own logins."""

from __future__ import annotations

import base64
import json

import httpx
import pytest

from sandman.images import Credentials, ImageError, Reference, Registry, parse, platforms
from tests.unit.client.fake_registry import FakeRegistry, registry

HEX = "a" * 64


@pytest.fixture
def fake():
    with registry() as one:
        yield one


@pytest.fixture
def find(fake: FakeRegistry, tmp_path):
    """Looks an image up as somebody whose home is empty but for what a test puts there."""
    with httpx.Client(trust_env=False, verify=False) as client:

        def call(path: str, platform: str = "linux/amd64"):
            credentials = Credentials({"HOME": str(tmp_path), "PATH": str(tmp_path)})
            asked = Registry(client, credentials, platforms.parse(platform))
            image = f"{fake.host}/{path}"
            return asked.find(image, parse(image))

        yield call


def log_in(tmp_path, **config) -> None:
    (tmp_path / ".docker").mkdir(exist_ok=True)
    (tmp_path / ".docker/config.json").write_text(json.dumps(config))


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


class TestReference:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("nginx", Reference("docker.io", "library/nginx")),
            ("nginx:1.25", Reference("docker.io", "library/nginx", "1.25")),
            ("bitnami/redis", Reference("docker.io", "bitnami/redis")),
            ("docker.io/nginx", Reference("docker.io", "library/nginx")),
            ("index.docker.io/a/b:c", Reference("docker.io", "a/b", "c")),
            ("ghcr.io/a/b/c:v1", Reference("ghcr.io", "a/b/c", "v1")),
            ("localhost/x", Reference("localhost", "x")),
            ("reg:5000/x:1", Reference("reg:5000", "x", "1")),
            (f"quay.io/x@sha256:{HEX}", Reference("quay.io", "x", "latest", f"sha256:{HEX}")),
            (f"quay.io/x:1@sha256:{HEX}", Reference("quay.io", "x", "1", f"sha256:{HEX}")),
        ],
    )
    def test_it_means_what_runtimes_take_it_to_mean(self, text, wanted):
        assert parse(text) == wanted

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "A",
            "a//b",
            "a:",
            "a@",
            "a@sha256:1",
            "a b",
            "x.io/",
            "evil.io:x/y",
            "a/../b",
            "a:b:c",
        ],
    )
    def test_what_is_none_is_refused(self, text):
        with pytest.raises(ValueError):
            parse(text)

    @pytest.mark.parametrize(
        ("text", "url"),
        [
            ("nginx", "https://registry-1.docker.io"),
            ("127.0.0.1:5000/x", "http://127.0.0.1:5000"),
            ("localhost:5000/x", "http://localhost:5000"),
            ("localhost.example/x", "https://localhost.example"),
        ],
    )
    def test_only_this_machine_is_asked_without_tls(self, text, url):
        assert parse(text).base_url == url


class TestLookUp:
    def test_entrypoint_cmd_and_digest(self, fake, find):
        wanted = fake.image("web", "1", Entrypoint=["/e"], Cmd=["x"], StopSignal="SIGQUIT")
        assert find("web:1") == (wanted, ("/e",), ("x",), "SIGQUIT")

    def test_an_image_that_says_nothing(self, fake, find):
        fake.image("empty")
        assert find("empty")[1:] == ((), (), "")

    def test_the_right_platform_of_an_index_and_its_digest(self, fake, find):
        arm = fake.image("m", "arm", platform="linux/arm64", Cmd=["arm"])
        intel = fake.image("m", "intel", Cmd=["intel"])
        note = fake.image("m", "note", platform="unknown/unknown", Cmd=["note"])
        wanted = fake.index(
            "m", "1", [("unknown/unknown", note), ("linux/arm64/v8", arm), ("linux/amd64", intel)]
        )
        assert find("m:1") == (wanted, (), ("intel",), "")
        assert find("m:1", "linux/arm64").cmd == ("arm",)
        assert find("m:1", "linux/arm64/v8").cmd == ("arm",)
        with pytest.raises(ImageError, match="it has no image for linux/s390x"):
            find("m:1", "linux/s390x")

    def test_an_image_of_another_platform_without_an_index(self, fake, find):
        fake.image("m", platform="linux/arm64")
        with pytest.raises(ImageError, match="it is for linux/arm64, not linux/amd64"):
            find("m")

    def test_by_digest(self, fake, find):
        wanted = fake.image("web", "1", Cmd=["x"])
        assert find(f"web@{wanted}").digest == wanted

    @pytest.mark.parametrize("part", ["manifests", "blobs"])
    def test_what_is_not_what_its_digest_says_is_refused(self, fake, find, part):
        wanted = fake.image("web", "1", Cmd=["x"])
        (path,) = [one for one in fake.content if f"/{part}/sha256" in one]
        kind, body = fake.content[path]
        fake.content[path] = (kind, body + b" ")
        with pytest.raises(ImageError, match="not what its digest says"):
            find(f"web@{wanted}")

    def test_a_blob_elsewhere_is_fetched_without_the_token(self, fake, find, tmp_path):
        fake.image("web", Cmd=["x"])
        fake.auth = "bearer"
        log_in(tmp_path, auths={fake.host: auth("me", "secret")})
        with registry() as other:
            other.content = fake.content
            fake.blobs_at = other.host
            assert find("web").cmd == ("x",)
            assert [authorization for _, authorization in other.seen] == [None]

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            (b"", "Expecting value"),
            (b"[]", "makes no sense"),
            (b"[" * 100_000, "makes no sense"),
            (b'{"schemaVersion":1,"fsLayers":[]}', "too old"),
            (b"x" * (4 * 1024 * 1024 + 1), "over 4194304 bytes"),
        ],
    )
    def test_manifests_that_are_none(self, fake, find, body, why):
        fake.put("/v2/web/manifests/latest", body)
        with pytest.raises(ImageError, match=why):
            find("web")

    def test_none_there_and_nobody_there(self, find):
        with pytest.raises(ImageError, match="web: there is none"):
            find("web")
        with httpx.Client(trust_env=False, verify=False) as client:
            nobody = Registry(client, Credentials({}), platforms.Platform())
            with pytest.raises(ImageError, match=r"127\.0\.0\.1:1/x"):
                nobody.find("127.0.0.1:1/x", parse("127.0.0.1:1/x"))

    def test_a_registry_in_trouble(self, fake, find):
        fake.answer = lambda *_: (503, {}, b"")
        with pytest.raises(ImageError, match="answers 503"):
            find("web")

    @pytest.mark.parametrize("text", ["linux", "linux/", "a/b/c/d", ""])
    def test_a_platform_that_is_none(self, text):
        with pytest.raises(ValueError, match="platform"):
            platforms.parse(text)


class TestLogins:
    @pytest.fixture(autouse=True)
    def image(self, fake):
        fake.image("team/web", Cmd=["x"])

    @pytest.mark.parametrize("kind", ["basic", "bearer"])
    def test_the_users_login_is_used(self, fake, find, tmp_path, kind):
        fake.auth = kind
        log_in(tmp_path, auths={fake.host: auth("me", "secret")})
        assert find("team/web").cmd == ("x",)
        with pytest.raises(ImageError):
            find("team/other")

    @pytest.mark.parametrize("kind", ["basic", "bearer"])
    def test_without_or_with_a_wrong_login_it_is_refused(self, fake, find, tmp_path, kind):
        fake.auth = kind
        with pytest.raises(ImageError, match=r"login|logged in"):
            find("team/web")
        log_in(tmp_path, auths={fake.host: auth("me", "wrong")})
        with pytest.raises(ImageError, match=r"login|logged in"):
            find("team/web")

    def test_the_most_specific_login_counts(self, fake, find, tmp_path):
        fake.auth = "bearer"
        entries = {fake.host: auth("you", "x"), f"https://{fake.host}/team": auth("me", "secret")}
        log_in(tmp_path, auths=entries)
        assert find("team/web").cmd == ("x",)

    def test_plain_entries_and_identity_tokens(self, fake, find, tmp_path):
        fake.auth = "bearer"
        log_in(tmp_path, auths={fake.host: {"username": "me", "password": "secret"}})
        assert find("team/web").cmd == ("x",)
        log_in(tmp_path, auths={fake.host: {"identitytoken": "identity"}})
        assert find("team/web").cmd == ("x",)

    @pytest.mark.parametrize(
        "answer",
        ['{"Username":"me","Secret":"secret"}', '{"Username":"<token>","Secret":"identity"}'],
    )
    @pytest.mark.parametrize("way", ["credsStore", "credHelpers"])
    def test_a_helper_is_asked(self, fake, find, tmp_path, way, answer):
        fake.auth = "bearer"
        helper = tmp_path / "docker-credential-vault"
        helper.write_text(f"#!/bin/sh\nread host; [ $host = {fake.host} ] && echo '{answer}'\n")
        helper.chmod(0o755)
        log_in(tmp_path, **{way: "vault" if way == "credsStore" else {fake.host: "vault"}})
        assert find("team/web").cmd == ("x",)

    def test_a_helper_that_knows_nothing_leaves_it_to_the_file(self, fake, find, tmp_path):
        fake.auth = "bearer"
        helper = tmp_path / "docker-credential-vault"
        helper.write_text("#!/bin/sh\nexit 1\n")
        helper.chmod(0o755)
        log_in(tmp_path, credsStore="vault", auths={fake.host: auth("me", "secret")})
        assert find("team/web").cmd == ("x",)

    def test_a_helper_that_is_not_there(self, fake, find, tmp_path):
        fake.auth = "bearer"
        log_in(tmp_path, credsStore="gone")
        with pytest.raises(ImageError, match="docker-credential-gone"):
            find("team/web")

    @pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"auths":{"HOST":{"auth":"%%%"}}}'])
    def test_a_file_that_cannot_be_read_is_named(self, fake, find, tmp_path, text):
        fake.auth = "bearer"
        log_in(tmp_path)
        (tmp_path / ".docker/config.json").write_text(text.replace("HOST", fake.host))
        with pytest.raises(ImageError, match=r"config\.json"):
            find("team/web")

    def test_podmans_file_comes_first(self, fake, tmp_path):
        (tmp_path / "containers").mkdir()
        (tmp_path / "containers/auth.json").write_text(
            json.dumps({"auths": {"h": auth("pod", "man")}})
        )
        other = tmp_path / "other.json"
        other.write_text(json.dumps({"auths": {"h/x": auth("ex", "plicit")}}))
        log_in(
            tmp_path,
            auths={"h": auth("dock", "er"), "https://index.docker.io/v1/": auth("hub", "1")},
        )
        environ = {"HOME": str(tmp_path)}
        assert Credentials(environ).find("h", "x").user == "dock"
        environ["XDG_RUNTIME_DIR"] = str(tmp_path)
        assert Credentials(environ).find("h", "x").user == "pod"
        environ["REGISTRY_AUTH_FILE"] = str(other)
        assert Credentials(environ).find("h", "x").user == "ex"
        assert Credentials(environ).find("h", "y").user == "pod"
        assert Credentials(environ).find("docker.io", "library/x").user == "hub"
        assert Credentials(environ).find("g", "x") is None

    @pytest.mark.parametrize(
        ("challenge", "why"),
        [
            ("Negotiate", "unknown kind: Negotiate"),
            ('Bearer service="x"', "unknown kind"),
            ("", "unknown kind"),
        ],
    )
    def test_challenges_that_nobody_can_meet(self, fake, find, challenge, why):
        fake.auth, fake.challenge = "bearer", challenge
        with pytest.raises(ImageError, match=why):
            find("team/web")

    def test_no_login_goes_out_without_tls(self, fake, tmp_path):
        fake.challenge = f'Bearer realm="http://{fake.host}/token"'
        with httpx.Client(trust_env=False, verify=False) as client:
            asked = Registry(client, Credentials({}), platforms.Platform())
            with pytest.raises(LookupError, match="without TLS"):
                asked._authorize(parse("quay.io/x"), fake.challenge)
        assert not fake.seen

    @pytest.mark.parametrize("body", [b"{}", b'{"token":1}'])
    def test_a_login_that_gives_no_token(self, fake, find, body):
        fake.auth = "bearer"
        fake._token = lambda *_: (200, {}, body)
        with pytest.raises(ImageError, match="no token"):
            find("team/web")

    def test_a_helper_that_hangs(self, monkeypatch, tmp_path):
        helper = tmp_path / "docker-credential-slow"
        helper.write_text("#!/bin/sh\nexec sleep 20\n")
        helper.chmod(0o755)
        log_in(tmp_path, credsStore="slow")
        monkeypatch.setattr("sandman.images.credentials.HELPER_S", 0.05)
        environ = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
        with pytest.raises(TimeoutError, match="docker-credential-slow"):
            Credentials(environ).find("h", "x")
