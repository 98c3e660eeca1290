"""One container: the daemon as PID 1 under runc, on an overlay that is thrown away.

All of it lives in a mount and a pid namespace whose first process the kernel kills with this one: nothing
is left mounted or running, however the tests end. Only empty cgroups can stay, and the next session
sweeps them away.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sandman import names
from tests.conformance import spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOKEN = "token-of-the-conformance-tests"
CGROUPS = Path("/sys/fs/cgroup")
IS_UNIFIED = (CGROUPS / "cgroup.controllers").exists()
"""cgroup v2: one tree of groups; v1 has one for each controller."""
PARENT = "sandman-conformance"
VOLUME = "/volume"
SMALL = "/small"
SMALL_BYTES = 4 << 20
# Of root and user alike, on every file system: what a pod's emptyDir volumes are.
_VOLUMES = {VOLUME: "256m", SMALL: str(SMALL_BYTES)}

_SCRIPT = """
set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/rootfs"
exec runc --root "$2/runc" run --bundle "$2" "$3"
"""
_STOP_S = 15.0


class Container:
    """A running daemon in a root file system.

    Args:
        scratch: a directory of its own, not on an overlay.
        layers: root directories, the upper one first.
        runtime: the tree that is mounted at names.MOUNT_PATH.
        uid: of the daemon; root has the capabilities that containerd gives, others have none.
        read_only: the root file system.
        workdir: where the daemon starts, as the image's WORKDIR says.
        env: the image's, beside PATH.
        limits: of the cgroup.
    """

    def __init__(
        self,
        scratch: Path,
        layers: Sequence[Path],
        runtime: Path,
        *,
        uid: int = 0,
        read_only: bool = False,
        workdir: str = "/",
        env: Mapping[str, str] | None = None,
        command: tuple[str, ...] = names.DAEMON_COMMAND,
        limits: spec.Limits = spec.Limits(),  # noqa: B008 - frozen
    ) -> None:
        self.name = f"{os.getpid()}-{scratch.name}"
        self.lines: list[str] = []
        for part in ("upper", "work", "rootfs", "runc"):
            (scratch / part).mkdir()
        plan = spec.Plan(
            uid=uid,
            cgroup=f"/{PARENT}/{self.name}",
            read_only=read_only,
            workdir=workdir,
            env={**(env or {}), **_settings()},
            command=command,
            limits=limits,
            is_unified=IS_UNIFIED,
            volumes=_VOLUMES,
            read_only_binds={names.MOUNT_PATH: runtime},
            binds=_kubelet_files(scratch),
        )
        (scratch / "config.json").write_text(json.dumps(spec.describe(plan)))
        self._process = self._start(scratch, layers)
        self.port = self._wait_for_port()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pid = self.processes()[0]

    def __repr__(self) -> str:
        return f"<Container {self.name} port={self.port}>"

    @property
    def url(self) -> str:
        """Where its daemon listens."""
        return f"http://127.0.0.1:{self.port}"

    def _start(self, scratch: Path, layers: Sequence[Path]) -> subprocess.Popen[str]:
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        lower = ":".join(str(layer) for layer in layers)
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *apart, "sh", "-c", _SCRIPT, "sh", lower, scratch, self.name],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )  # fmt: skip

    def _wait_for_port(self) -> int:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)
            if "listens on port" in line:
                return int(line.split()[-1])
        raise AssertionError(f"the container did not start: {''.join(self.lines)}")

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            self.lines.extend(stderr)

    def processes(self) -> list[int]:
        """Pids of all that runs in it, as this side numbers them; the daemon first."""
        root = CGROUPS if IS_UNIFIED else CGROUPS / "pids"
        text = (root / PARENT / self.name / "cgroup.procs").read_text()
        return sorted(map(int, text.split()))

    def strangers(self) -> dict[int, str]:
        """What runs in it besides the daemon: pid -> command line."""
        found = {}
        for pid in self.processes():
            with suppress(OSError):
                line = (
                    Path(f"/proc/{pid}/cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode("utf-8", "replace")
                )
                if pid != self.pid:
                    found[pid] = line
        return found

    def peak_kib(self) -> int:
        """The most memory that the daemon itself has had."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def wait(self, seconds: float = _STOP_S) -> int:
        """The exit code of its first process, once it has ended by itself."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """Kill PID 1, and so all of it, as the kernel does for want of memory."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(_STOP_S)

    def stop(self) -> None:
        """End it as the kubelet would; when it does not listen, by force."""
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        sweep(self.name)


def sweep(name: str | None = None) -> None:
    """Remove the empty cgroups of one container, or those that ended sessions have left."""
    for parent in CGROUPS.glob(PARENT if IS_UNIFIED else f"*/{PARENT}"):
        for group in parent.iterdir() if name is None else [parent / name]:
            if name is not None or not _is_alive(group.name.partition("-")[0]):
                with suppress(OSError):
                    group.rmdir()
        with suppress(OSError):
            parent.rmdir()


def _is_alive(pid: str) -> bool:
    return not pid.isdigit() or Path(f"/proc/{pid}").exists()


def _settings() -> dict[str, str]:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    return {names.ENV_TOKEN_SHA256: digest, names.ENV_PORT: "0"}


def _kubelet_files(scratch: Path) -> dict[str, Path]:
    """What the kubelet writes and binds over the image's own: a file that no rename can replace."""
    texts = {
        "hosts": "127.0.0.1\tlocalhost\n",
        "hostname": "sandbox\n",
        "resolv.conf": "",
    }
    for name, text in texts.items():
        (scratch / name).write_text(text)
    return {f"/etc/{name}": scratch / name for name in texts}
