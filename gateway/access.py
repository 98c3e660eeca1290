"""May this caller do that in the cluster? Asked of the API server, as the caller.

The gateway itself has no right that it could lend: `pods/exec` of a user's pod is the user's.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import trio

from gateway.provider.kubernetes import translate
from sandman.service import kube

if TYPE_CHECKING:
    from gateway.model import Identity

VERDICT_S = 10.0
"""Seconds for which a verdict holds: so long a right that was taken away is still used to attach."""
VERDICTS_MAX = 4096
"""Verdicts kept; some 300 bytes each."""
ACCOUNT = "system:serviceaccount:"


class Access:
    """Asks with SubjectAccessReviews.

    Args:
        api: the API server.
    """

    def __init__(self, api: kube.Kube) -> None:
        self._api = api
        self._verdicts: OrderedDict[tuple[Identity, str, str], tuple[float, bool]] = OrderedDict()

    async def may_exec(self, who: Identity, namespace: str, pod: str = "") -> bool:
        """Whether he may `create pods/exec` for this pod; "" for every pod of the namespace.

        Raises:
            SandmanError: the API server gives no verdict.
        """
        key = (who, namespace, pod)
        until, verdict = self._verdicts.get(key, (0.0, False))
        if trio.current_time() < until:
            return verdict
        verdict = await self._ask(who, namespace, pod)
        self._verdicts[key] = (trio.current_time() + VERDICT_S, verdict)
        self._verdicts.move_to_end(key)
        while len(self._verdicts) > VERDICTS_MAX:
            self._verdicts.popitem(last=False)
        return verdict

    async def _ask(self, who: Identity, namespace: str, pod: str) -> bool:
        attributes = {
            "namespace": namespace,
            "verb": "create",
            "version": "v1",
            "resource": "pods",
            "subresource": "exec",
            "name": pod,
        }
        spec = {
            "user": who.user,
            "groups": list(groups(who)),
            "resourceAttributes": attributes,
        }
        try:
            answer = await self._api.create(kube.SUBJECT_ACCESS_REVIEWS, {"spec": spec})
        except kube.KubeError as error:
            raise translate(error) from error
        status = answer.get("status") or {}
        return status.get("allowed") is True and not status.get("denied")


def groups(who: Identity) -> tuple[str, ...]:
    """His groups with those that the API server gives to everybody whom it knows."""
    implied = ["system:authenticated"]
    if who.user.startswith(ACCOUNT):
        namespace = who.user.removeprefix(ACCOUNT).partition(":")[0]
        implied += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    return (*who.groups, *(one for one in implied if one not in who.groups))
