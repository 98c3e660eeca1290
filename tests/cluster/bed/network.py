"""The machine's own network settings that the cluster needs, and their removal.

What kube-proxy, kube-router and the bridge plugin leave behind has recognisable names; only that is removed, so rules
that others added meanwhile stay.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.bed import model
from tests.cluster.bed.shell import attempt, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.bed.model import Bed

# Changed by us or by a component of the cluster, and put back by `down`.
SYSCTLS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/bridge/bridge-nf-call-iptables",
    "net/ipv4/conf/all/arp_announce",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/default/rp_filter",
    "net/ipv4/ip_forward",
    "net/ipv4/neigh/default/gc_thresh1",
    "net/ipv4/neigh/default/gc_thresh2",
    "net/ipv4/neigh/default/gc_thresh3",
    "net/ipv6/conf/all/forwarding",
    "net/netfilter/nf_conntrack_max",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
_WANTED = {"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1"}
_ROOT = Path("/proc/sys")
_CHAINS = ("KUBE-", "CNI-")
_SETS = ("KUBE-", "inet6:KUBE-", "kube-router-", "inet6:kube-router-")
# kube-proxy's packet counters: objects of the kernel beside the rules that count in them.
_COUNTERS = ("ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts")
_MARK = "sandman test cluster"
_TOOLS = ("iptables", "ip6tables")


def read_sysctls() -> dict[str, str]:
    """The settings as they are; those that this kernel lacks are left out."""
    return {name: (_ROOT / name).read_text().strip() for name in SYSCTLS if (_ROOT / name).exists()}


def prepare(bed: Bed) -> None:
    """Give the node its address and let the kernel forward and filter what crosses the bridge."""
    (bed.state / "sysctls.json").write_text(json.dumps(read_sysctls()))
    for name, value in _WANTED.items():
        if (_ROOT / name).exists():
            (_ROOT / name).write_text(value)
    run(["ip", "link", "add", model.NODE_LINK, "type", "bridge"])
    run(["ip", "address", "add", f"{bed.node_ip}/32", "dev", model.NODE_LINK])
    run(["ip", "link", "set", model.NODE_LINK, "up"])
    # What pods send outside leaves as the node, as on a real cluster.
    source = ["-s", model.POD_CIDR, "!", "-d", model.POD_CIDR]
    rule = [*source, "-m", "comment", "--comment", _MARK, "-j", "MASQUERADE"]
    run(["iptables", "-w", "-t", "nat", "-A", "POSTROUTING", *rule])


def restore(bed: Bed) -> None:
    """Remove links, rules, sets and settings of the cluster; fine to call when there are none."""
    for link in (model.POD_BRIDGE, model.NODE_LINK):
        attempt(["ip", "link", "delete", link])
    for tool in _TOOLS:
        script = removal(attempt([f"{tool}-save"]))
        if script:
            run([f"{tool}-restore", "-w", "--noflush"], stdin=script)
    for name in attempt(["ipset", "list", "-name"]).split():
        if name.startswith(_SETS):
            run(["ipset", "destroy", name])
    for name in _COUNTERS:
        attempt(["nfacct", "delete", name])
    _restore_sysctls(bed.state / "sysctls.json")


def removal(saved: str) -> str:
    """From the output of iptables-save, the script that removes the cluster's chains and rules; empty if none. Pure."""
    script: list[str] = []
    for table, lines in _tables(saved):
        chains = [
            line[1:].split()[0] for line in lines if line.startswith(":") and _is_ours(line[1:])
        ]
        rules = [line for line in lines if line.startswith("-A ") and _must_go(line)]
        if chains or rules:
            # Foreign chains first lose their jumps; then ours can be emptied, and only then deleted.
            script += [f"*{table}", *(line.replace("-A ", "-D ", 1) for line in rules)]
            script += [f"-F {chain}" for chain in chains] + [f"-X {chain}" for chain in chains]
            script.append("COMMIT")
    return "".join(f"{line}\n" for line in script)


def _tables(saved: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", list[str]()
    for line in saved.splitlines():
        if line.startswith("*"):
            name, lines = line[1:], []
        elif line == "COMMIT":
            yield name, lines
        else:
            lines.append(line)


def _must_go(rule: str) -> bool:
    """A rule in a foreign chain that leads into one of ours, or that we marked (or kube-router did)."""
    words = rule.split()
    if _is_ours(words[1]):
        return False
    target = words[words.index("-j") + 1] if "-j" in words else ""
    return _is_ours(target) or _MARK in rule or "kube-router" in rule


def _is_ours(chain: str) -> bool:
    return chain.startswith(_CHAINS)


def _restore_sysctls(record: Path) -> None:
    if not record.exists():
        return
    now = read_sysctls()
    for name, value in json.loads(record.read_text()).items():
        if now.get(name) != value:
            (_ROOT / name).write_text(value)
