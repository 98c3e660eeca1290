"""Checks an installation hop by hop, with the rights of whoever runs it: `sandman doctor`.

    findings    what a check says: how it is, and what to do      cluster    kubectl, and nothing else
    installed   versions, programs, configuration, certificates   admission  API server → webhook, delivery
    rights      RBAC, quotas                                      trial      a pod and a sandbox of its own: delivery,
                                                                             gateway → pod, network policies

Every check is a function from a cluster to findings; one that cannot be asked is itself a finding.
"""

from __future__ import annotations
