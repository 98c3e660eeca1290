"""Images of real services for the test cluster: Debian's nginx, Redis and PostgreSQL over the base image, with an
entrypoint, with a command alone, and with both.

Packages are unpacked and not configured: their scripts would start servers on the machine that builds.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.bed import images, roots
from tests.cluster.bed.shell import run

if TYPE_CHECKING:
    from tests.cluster.bed import Bed

PACKAGES = ("nginx-light", "redis-server", "postgresql-15")
PORT = 8080
NGINX = f"""
worker_processes 1;
pid /tmp/nginx.pid;
error_log /dev/stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path /tmp/b; proxy_temp_path /tmp/p; fastcgi_temp_path /tmp/f;
    uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s;
    server {{ listen {PORT}; location / {{ return 200 "served\\n"; }} }}
}}
"""
POSTGRES = f"""#!/bin/sh
set -e
bin=$(echo /usr/lib/postgresql/*/bin)
[ -s "$PGDATA/PG_VERSION" ] || "$bin/initdb" -D "$PGDATA" -U agent -A trust >/dev/null
exec "$bin/postgres" -D "$PGDATA" -p {PORT} -k /tmp -c listen_addresses='*' -c fsync=off "$@"
"""
_SPLIT = ("bin", "sbin", "lib", "lib64")
"""Of the root directory; in the base image links into /usr, which a layer with directories would hide."""


def publish(bed: Bed) -> None:
    """Put the three into the registry that are not there yet."""
    for image in _images(bed):
        if not images._is_published(bed, image):
            layout = images._layout(bed, image)
            for tag in ("1", image.key):
                target = f"docker://{bed.registry}/{images.PREFIX}/{image.name}:{tag}"
                run(["skopeo", "copy", "--dest-tls-verify=false", f"oci:{layout}:1", target])


def _images(bed: Bed) -> tuple[images.Image, ...]:
    agent = images.Layer("agent", roots.make_agent_user, "agent 1")
    recipe = f"services 1 {' '.join(PACKAGES)} {NGINX} {POSTGRES}"
    services = images.Layer("services", functools.partial(_make, bed), recipe)
    layers = (images.DEBIAN, agent, services)
    path = "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    common: dict[str, object] = {
        "User": str(roots.USER_ID),
        "Env": [path, "PGDATA=/tmp/data", "LC_ALL=C"],
    }
    return (
        images.Image(
            "nginx",
            layers,
            common
            | {"Entrypoint": ["nginx"], "Cmd": ["-g", "daemon off;"], "StopSignal": "SIGQUIT"},
        ),
        images.Image(
            "redis",
            layers,
            common
            | {
                "Cmd": ["redis-server", "--port", str(PORT), "--save", "", "--protected-mode", "no"]
            },
        ),
        images.Image(
            "postgres", layers, common | {"Entrypoint": ["postgres-entry"], "StopSignal": "SIGINT"}
        ),
    )


def _make(bed: Bed, root: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="services-") as directory:
        place = Path(directory)
        for archive in _download(bed, place):
            run(["dpkg-deb", "-x", archive, root])
    for name in _SPLIT:
        split = root / name
        if split.is_dir():
            shutil.copytree(split, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(split)
    for name in ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/log"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("var/log/nginx", "var/lib/nginx"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(0o1777)
    (root / "etc/nginx/nginx.conf").write_text(NGINX)
    entry = root / "usr/local/bin/postgres-entry"
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.write_text(POSTGRES)
    entry.chmod(0o755)


def _download(bed: Bed, place: Path) -> list[Path]:
    """The packages and what they need beyond the base image."""
    base = images.packed(bed, images.DEBIAN).file
    status, archives = place / "status", place / "archives"
    (archives / "partial").mkdir(parents=True)
    with status.open("wb") as file:
        member = ["tar", "-xzOf", str(base), "--occurrence", "./var/lib/dpkg/status"]
        subprocess.run(member, stdout=file, check=True)
    options = [
        f"Dir::State::status={status}",
        f"Dir::Cache::archives={archives}",
        "Debug::NoLocking=1",
    ]
    chosen = [word for option in options for word in ("-o", option)]
    flags = ["-y", "--no-install-recommends", "--download-only"]
    run(["apt-get", *chosen, *flags, "install", *PACKAGES])
    return sorted(archives.glob("*.deb"))
