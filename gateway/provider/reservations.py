"""Reservations as Lease objects: what is asked for stands in annotations, and survives every gateway.

A Lease and not a resource of our own: nothing needs to be installed, and who looks sees whose it is and how
long it runs. What is prepared for it stands on the pods.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from gateway import steps
from gateway.leases import number
from gateway.provider.kubernetes import translate
from gateway.provider.pods import load_object
from gateway.reserving import Reservation
from sandman import names
from sandman.errors import SandmanError
from sandman.service import kube

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger()

PREFIX = "sandman-reservation-"


class LeaseReservations:
    """The store of reservations.

    Args:
        api: the API server.
        namespace: where the Leases are.
    """

    def __init__(self, api: kube.Kube, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    async def create(self, reservation: Reservation) -> Reservation:
        """Keep it; when there is one of its id already, that one.

        Raises:
            SandmanError: it is not known whether it is kept.
        """
        try:
            await self._api.create(kube.LEASES, body(reservation), namespace=self._namespace)
        except kube.AlreadyExistsError:
            found = [one for one in await self.list() if one.id == reservation.id]
            return found[0] if found else reservation
        except kube.KubeError as error:
            raise translate(error) from error
        return reservation

    async def list(self) -> list[Reservation]:
        """All that are kept and can be read.

        Raises:
            SandmanError: the API server does not tell.
        """
        try:
            listing = await self._api.list(
                kube.LEASES, namespace=self._namespace, label_selector=names.LABEL_RESERVATION
            )
        except kube.KubeError as error:
            raise translate(error) from error
        found = []
        for lease in listing.items:
            try:
                found.append(read(lease))
            except (SandmanError, ValueError, KeyError, TypeError, OverflowError) as error:
                log.warning(
                    "a reservation cannot be read", lease=lease.metadata.name, error=str(error)
                )
        return found

    async def set_used(self, reservation: Reservation) -> None:
        """Keep how many were handed out.

        Raises:
            SandmanError: it may not be kept.
        """
        patch = {"metadata": {"annotations": {names.ANNOTATION_USED: str(reservation.used)}}}
        try:
            await self._api.patch_merge(
                kube.LEASES,
                PREFIX + reservation.id,
                patch,
                namespace=self._namespace,
                idempotent=True,
            )
        except kube.NotFoundError:
            return
        except kube.KubeError as error:
            raise translate(error) from error

    async def delete(self, reservation: Reservation) -> None:
        """Forget it; one that is gone is no error.

        Raises:
            SandmanError: it may be there still.
        """
        try:
            await self._api.delete(
                kube.LEASES, PREFIX + reservation.id, namespace=self._namespace, idempotent=True
            )
        except kube.NotFoundError:
            return
        except kube.KubeError as error:
            raise translate(error) from error


def body(reservation: Reservation) -> dict[str, Any]:
    """The Lease of a reservation."""
    kept = {
        "key_id": reservation.key_id,
        "image": reservation.image,
        "pool": reservation.pool,
        "count": reservation.count,
        "until": reservation.until,
        "created_at": reservation.created_at,
        "run": reservation.run,
        "prepare": json.loads(reservation.steps.text),
    }
    created = datetime.fromtimestamp(reservation.created_at, UTC)
    return {
        "metadata": {
            "name": PREFIX + reservation.id,
            "labels": {
                names.LABEL_RESERVATION: reservation.id,
                names.LABEL_TENANT: reservation.tenant,
            },
            "annotations": {
                names.ANNOTATION_REQUEST: json.dumps(kept, sort_keys=True, separators=(",", ":")),
                names.ANNOTATION_USED: str(reservation.used),
            },
        },
        "spec": {
            # For people: nobody renews it, and nothing is decided by it.
            "holderIdentity": reservation.tenant,
            "leaseDurationSeconds": max(1, int(reservation.until - reservation.created_at)),
            "acquireTime": kube.micro_time(created),
        },
    }


def read(lease: kube.Lease) -> Reservation:
    """The reservation in a Lease.

    Raises:
        SandmanError, ValueError, KeyError, TypeError, OverflowError: somebody broke it.
    """
    meta = lease.metadata
    kept: Mapping[str, Any] = load_object(meta.annotation(names.ANNOTATION_REQUEST))
    return Reservation(
        id=meta.label(names.LABEL_RESERVATION),
        tenant=meta.label(names.LABEL_TENANT),
        key_id=str(kept["key_id"]),
        image=str(kept["image"]),
        pool=str(kept["pool"]),
        count=int(kept["count"]),
        until=_moment(kept["until"]),
        created_at=_moment(kept["created_at"]),
        steps=steps.parse(kept["prepare"]),
        run=None if kept["run"] is None else str(kept["run"]),
        used=int(meta.annotation(names.ANNOTATION_USED, "0")),
    )


def _moment(value: object) -> float:
    """Seconds since the epoch that can be told as a date, and are over some day."""
    moment = number(value)
    if moment is None:
        raise ValueError("not a moment")
    return moment
