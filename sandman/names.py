"""Every name that two programs must spell alike: labels, annotations, headers, ports, paths.

Standard library only: the daemon ships this file. `manifests/` repeats some of these in YAML; a
test compares both.
"""

from __future__ import annotations

DOMAIN = "sandman.dev"

# --- namespaces and objects that the manifests create -------------------------------------------

SYSTEM_NAMESPACE = "sandman-system"
SANDBOX_NAMESPACE = "sandman-sandboxes"

KEYS_SECRET = "sandman-keys"  # noqa: S105 - the name of a Secret, not a secret
"""Signing keys shared by gateway and webhook. Made empty by the manifests, filled by the webhook."""
API_KEYS_SECRET = "sandman-api-keys"  # noqa: S105 - a name
"""Hashes of callers' API keys: one entry a key id."""
CALLERS_CONFIG = "sandman-callers"
"""ConfigMap that says which ServiceAccounts and which issuers' tokens are which tenant's."""
GATEWAY_TLS_SECRET = "sandman-gateway-tls"  # noqa: S105 - a name
WEBHOOK_TLS_SECRET = "sandman-webhook-tls"  # noqa: S105 - a name
WEBHOOK_CONFIGURATION = "sandman-webhook"
ALLOCATOR_LEASE = "sandman-allocator"

ATTACHMENT_PREFIX = "sandman-attached-"
"""Of Leases in Sandman's namespace: who is attached to a container of a user's workload. The pod itself is
never written."""

# --- labels --------------------------------------------------------------------------------------

LABEL_INJECT = f"{DOMAIN}/inject"
"""On a namespace: `enabled` for pools, `workloads` for users' own pods: what the webhook may see there. On a
pod: `pool` or `workload`, what it asks for."""
LABEL_POOL = f"{DOMAIN}/pool"
LABEL_STATE = f"{DOMAIN}/state"
LABEL_TENANT = f"{DOMAIN}/tenant"
LABEL_RUN = f"{DOMAIN}/run"
LABEL_KEY = f"{DOMAIN}/key"
"""Hash of the caller's idempotency key, so that a repeated call finds its sandbox again."""
LABEL_NETWORK = f"{DOMAIN}/network"
LABEL_ATTACHED = f"{DOMAIN}/attached"
"""On the Lease of an attachment."""
LABEL_TIER = f"{DOMAIN}/tier"
"""How the sandbox came to be: warm, swap or cold."""
LABEL_NODE_CLASS = f"{DOMAIN}/node-class"
"""Of nodes, by which a pool's template selects them; or an annotation of the pool that says the same."""
LABEL_MONITORING = f"{DOMAIN}/monitoring"
"""`enabled` on a namespace lets its pods read metrics that tell of tenants."""

INJECT_NAMESPACE_ENABLED = "enabled"
INJECT_NAMESPACE_WORKLOADS = "workloads"
INJECT_POOL = "pool"
INJECT_WORKLOAD = "workload"

LABEL_RESERVATION = f"{DOMAIN}/reservation"
"""Id of the reservation that a pod was prepared for, or that a Lease holds."""

STATE_FREE = "free"
STATE_RESERVED = "reserved"
STATE_LEASED = "leased"
STATE_ENDED = "ended"

# --- annotations ---------------------------------------------------------------------------------

GATE_REFILL = f"{DOMAIN}/refill"
"""Scheduling gate of a pool's template: the gateway decides when a new placeholder may start."""

ANNOTATION_NONCE = f"{DOMAIN}/nonce"
"""Made anew by the webhook for each pod, whatever came in; input of the daemon's token."""
ANNOTATION_KEY_ID = f"{DOMAIN}/key-id"
ANNOTATION_INJECTED = f"{DOMAIN}/injected"
"""Version of the webhook that injected the pod."""
ANNOTATION_LEASE = f"{DOMAIN}/lease"
ANNOTATION_RENEWED = f"{DOMAIN}/renewed"
"""When a gateway last wrote that the sandbox's caller is there. A change of it is what counts."""
ANNOTATION_REQUEST = f"{DOMAIN}/request"
ANNOTATION_CLAIM = f"{DOMAIN}/claim"
"""Identity of the claim that took the pod: the daemon accepts one claim and no other."""
ANNOTATION_PREPARED = f"{DOMAIN}/prepared"
"""Set when a reserved pod is prepared to the end: hash of tenant, image and steps, and the daemon start that
it was done in. Such a pod never becomes free again."""
ANNOTATION_NETWORK_CHANGED = f"{DOMAIN}/network-changed"
"""Set when a sandbox is given another egress profile: when that was done last, and which it had before."""
ANNOTATION_USED = f"{DOMAIN}/used"
"""Of a reservation's Lease: how many of its placeholders were handed out."""
ANNOTATION_ENDED = f"{DOMAIN}/ended"
ANNOTATION_WORKLOAD = f"{DOMAIN}/workload"
"""On the Lease of an attachment: which container of which pod, by uid, and which start of its daemon."""
ANNOTATION_IDENTITY = f"{DOMAIN}/identity"
"""On the Lease of an attachment: the Kubernetes user whose right it is."""
ANNOTATION_DELIVERY = f"{DOMAIN}/delivery"
"""How the daemon gets into the pod: `image` (image volume) or `init` (init container that copies)."""
ANNOTATION_CONTAINER = f"{DOMAIN}/container"
"""Which containers of a workload get the daemon: names with commas between, or `*`; else the first."""
ANNOTATION_COMMANDS = f"{DOMAIN}/commands"
"""What the images of a workload run by themselves, as `sandman inject` found it: see `entrypoints`."""
ANNOTATION_CONTAINERS = f"{DOMAIN}/containers"
"""Written by the webhook: the injected containers of a workload, each with its daemon's port, as JSON."""
ANNOTATION_NOT_INJECTED = f"{DOMAIN}/not-injected"
"""Written by the webhook: why a workload runs without the daemon."""
ANNOTATION_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"

# Annotations of a pool's Deployment.
ANNOTATION_POOL_MIN = f"{DOMAIN}/min"
"""Fewest free placeholders. With it and MAX the gateway keeps the pool's `replicas`."""
ANNOTATION_POOL_MAX = f"{DOMAIN}/max"
ANNOTATION_POOL_SWAP = f"{DOMAIN}/swap"
ANNOTATION_POOL_NETWORK = f"{DOMAIN}/network"
"""Egress profile of a sandbox whose caller names none; without it `none`."""
ANNOTATION_POOL_NETWORKS = f"{DOMAIN}/networks"
"""Egress profiles that callers may ask for, separated by commas, `*` for all; beside the pool's own and `none`."""
ANNOTATION_POOL_PREPARE = f"{DOMAIN}/prepare"
"""Steps, as JSON, for each sandbox of the pool whose request has none."""
ANNOTATION_POOL_RESIZE = f"{DOMAIN}/resize"
"""`"true"`: a sandbox of the pool may be given other cpu and memory in place."""
ANNOTATION_POOL_CHOOSE = f"{DOMAIN}/choose"
"""`"true"`: the pool may be chosen for a request that names none."""
ANNOTATION_POOL_PURPOSE = f"{DOMAIN}/purpose"
"""`"eval"`: the pool is for evaluations alone."""
ANNOTATION_POOL_TENANTS = f"{DOMAIN}/tenants"
ANNOTATION_BROKEN = f"{DOMAIN}/broken"
"""Why the gateway stopped the pool, as JSON; whoever takes it off starts it again."""

DELIVERY_IMAGE = "image"
DELIVERY_INIT = "init"

ALL_CONTAINERS = "*"

# Of NetworkPolicies.
LABEL_PROFILE = f"{DOMAIN}/profile"
"""Name of the egress profile that a NetworkPolicy is; its selector has the same value of `network`."""
ANNOTATION_CANARY = f"{DOMAIN}/canary"
"""Addresses `ip:port`, separated by commas, that accept connections and that the profile opens."""
ANNOTATION_CANARY_CLOSED = f"{DOMAIN}/canary-closed"
"""Addresses that accept connections and that the profile does not open."""

NETWORK_NONE = "none"
"""The egress profile that opens nothing, and that needs no NetworkPolicy of its own."""

# --- inside the pod ------------------------------------------------------------------------------

MOUNT_PATH = "/.sandman"
"""An odd top-level name: it hides nothing that an image may hold."""
VOLUME = "sandman"
INIT_CONTAINER = "sandman-copy"
DAEMON_PORT = 21763
DAEMON_COMMAND = (f"{MOUNT_PATH}/bin/python3", "-I", "-S", f"{MOUNT_PATH}/app", "serve")
EXIT_EXPIRED = 93
"""Exit code of a daemon that ended its sandbox because its lease was over. No other end of it has this
number, and nothing inside can give it one: as process 1 it exits by its own will or is killed."""

ENV_PREFIX = "SANDMAN_"
"""Variables with this prefix speak to the daemon and never reach a command."""
ENV_TOKEN_SHA256 = "SANDMAN_TOKEN_SHA256"  # noqa: S105 - a name
"""Hex SHA-256 of the only bearer token that the daemon accepts."""
ENV_PORT = "SANDMAN_PORT"

# --- HTTP ----------------------------------------------------------------------------------------

GATEWAY_PORT = 8443
WEBHOOK_PORT = 10250
"""Open from managed control planes to nodes on every large provider."""

HEADER_BOOT_ID = "Sandman-Boot-Id"
"""The daemon start that a call is meant for; another start answers 410 `died`."""
HEADER_WITHIN = "Sandman-Within"
"""Seconds within which a caller wants to hear that its sandbox is out of reach."""
FACT_SILENT_S = "silent_s"
"""Fact of an error: for so many seconds the sandbox had not been heard of when it was told, and looked for."""
CLOSE_OUT_OF_REACH = 4503
"""Close code of a WebSocket whose sandbox is silent and was looked for: to come back at once is of no use."""
HEADER_REQUEST_ID = "Sandman-Request-Id"
HEADER_HOP = "Sandman-Hop"
"""Set by a gateway that hands a call to the allocator: such a call is never handed on again."""
HEADER_IDEMPOTENCY_KEY = "Idempotency-Key"

HEADER_PORT = "Sandman-Port"
"""On an answer that a server inside the sandbox gave, its port; what Sandman says itself has none."""

MEDIA_FRAMES = "application/vnd.sandman.frames"
MEDIA_JSON = "application/json"
MEDIA_NDJSON = "application/x-ndjson"
MEDIA_PROBLEM = "application/problem+json"
MEDIA_BYTES = "application/octet-stream"
MEDIA_TAR = "application/x-tar"

# --- the client's environment --------------------------------------------------------------------

ENV_URL = "SANDMAN_URL"
ENV_TOKEN = "SANDMAN_TOKEN"  # noqa: S105 - a name
ENV_TOKEN_FILE = "SANDMAN_TOKEN_FILE"  # noqa: S105 - a name
"""Of a file with the token, which is read for each call: who renews it need not tell the client."""
ENV_CA = "SANDMAN_CA"

# --- what Kubernetes takes as a label's value ----------------------------------------------------

# By hand and not by `re`: see `notation`.
_ALPHANUMERIC = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_WORD = _ALPHANUMERIC | frozenset("._-")


def is_label(value: object) -> bool:
    """Whether this can be a label's value: 1 to 63 of A-Z a-z 0-9 . _ - with alphanumeric ends."""
    if not isinstance(value, str) or not 1 <= len(value) <= 63:
        return False
    return _WORD.issuperset(value) and _ALPHANUMERIC.issuperset(value[0] + value[-1])


# --- what names a command -------------------------------------------------------------------------


def is_exec_id(value: object) -> bool:
    """Whether this can name a command: 1 to 64 of A-Z a-z 0-9 . _ - and not dots alone, which in a
    path mean something else."""
    if not isinstance(value, str) or not 1 <= len(value) <= 64:
        return False
    return _WORD.issuperset(value) and bool(value.strip("."))


# --- ports of servers in a sandbox ---------------------------------------------------------------


def port_number(text: str) -> int | None:
    """The TCP port that this text names in the one way there is to write it; None when it names none."""
    number = int(text) if len(text) <= 5 and text.isascii() and text.isdecimal() else 0
    return number if 0 < number < 65536 and str(number) == text else None
