"""Who may call the gateway, and what it says to what makes no sense."""

from __future__ import annotations

import pytest

from sandman import names

# --- who may ---


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer smk_acme_wrong"}])
async def test_without_a_known_token_nothing_is_said(bed, header):
    for method, path in [
        ("POST", "/v1/sandboxes"),
        ("GET", "/v1/sandboxes/x-00000000"),
        ("GET", "/v1/pools"),
        ("GET", "/v1/overview"),
    ]:
        answer = await bed.client.request(method, path, headers=header)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.headers["content-type"] == names.MEDIA_PROBLEM


async def test_another_tenants_sandbox_is_like_one_that_never_was(bed):
    made = await bed.allocate()
    zeta = bed.as_("zeta")
    for method, tail in [
        ("GET", ""),
        ("POST", "/exec"),
        ("GET", "/files?path=/x"),
        ("GET", "/info"),
    ]:
        theirs = await bed.client.request(method, f"/v1/sandboxes/{made['id']}{tail}", headers=zeta)
        never = await bed.client.request(
            method, f"/v1/sandboxes/pod-9-abcdef01{tail}", headers=zeta
        )
        assert theirs.status_code == never.status_code == 404
        assert theirs.text.replace(made["id"], "") == never.text.replace("pod-9-abcdef01", "")
    # To release it says nothing and does nothing.
    assert (await bed.client.delete(f"/v1/sandboxes/{made['id']}", headers=zeta)).status_code == 204
    assert (await bed.client.get("/v1/sandboxes", headers=zeta)).json() == {"sandboxes": []}
    assert len(bed.cluster.leased()) == 1


async def test_a_sandbox_token_is_good_for_its_sandbox_alone(bed):
    made = await bed.allocate()
    scoped = {"authorization": f"Bearer {made['token']}"}
    ran = await bed.client.post(
        f"/v1/sandboxes/{made['id']}/exec", json={"argv": ["true"]}, headers=scoped
    )
    assert ran.status_code == 200
    other = await bed.client.post("/v1/sandboxes/pod-9-abcdef01/exec", json={}, headers=scoped)
    assert other.status_code == 404
    for method, path in [
        ("POST", "/v1/sandboxes"),
        ("GET", "/v1/sandboxes"),
        ("DELETE", f"/v1/sandboxes/{made['id']}"),
        ("DELETE", "/v1/runs/r"),
    ]:
        assert (await bed.client.request(method, path, headers=scoped)).status_code == 403


async def test_the_daemons_own_token_and_headers_never_reach_the_caller_nor_his_the_daemon(bed):
    made = await bed.allocate()
    answer = await bed.client.post(
        f"/v1/sandboxes/{made['id']}/exec",
        json={"shell": "env; cat /proc/$PPID/environ | tr '\\0' '\\n'"},
        headers=bed.as_("acme"),
    )
    assert bed.credentials.texts["acme"] not in answer.text
    assert "authorization" not in answer.headers


# --- bad input ---


@pytest.mark.parametrize(
    ("content", "field"),
    [(b"{", "body"), (b"[]", "body"), (b'{"image": 5}', "image"), (b'{"nope": 1}', "nope"),
     (b'{"image": "NOT VALID"}', "image"), (b"\xff", "body")],
)  # fmt: skip
async def test_a_malformed_body_is_400_and_names_the_field(bed, content, field):
    answer = await bed.client.post("/v1/sandboxes", content=content, headers=bed.as_("acme"))
    assert (answer.status_code, answer.json()["field"]) == (400, field)


async def test_a_body_too_large_is_413(bed):
    answer = await bed.client.post(
        "/v1/sandboxes", content=b" " * (1024 * 1024 + 1), headers=bed.as_("acme")
    )
    assert (answer.status_code, answer.json()["reason"]) == (413, "too_large")


async def test_no_such_path_and_no_such_method(bed):
    none = await bed.client.get("/v1/nope", headers=bed.as_("acme"))
    assert (none.status_code, none.json()["reason"]) == (404, "not_found")
    assert (await bed.client.get("/v1/sandboxes/", headers=bed.as_("acme"))).status_code == 404
    one = await bed.client.patch("/v1/sandboxes/x-00000000", headers=bed.as_("acme"))
    assert one.headers["allow"] == "DELETE, GET, HEAD"
    wrong = await bed.client.put("/v1/sandboxes", headers=bed.as_("acme"))
    assert wrong.headers["allow"] == "GET, HEAD, POST"
    assert (wrong.status_code, wrong.json()["reason"]) == (405, "method_not_allowed")


async def test_the_claim_is_not_reachable_from_outside(bed):
    made = await bed.allocate()
    answer = await bed.client.post(
        f"/v1/sandboxes/{made['id']}/claim", json={"claim_id": "x"}, headers=bed.as_("acme")
    )
    assert answer.status_code == 404
