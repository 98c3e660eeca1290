"""Debian's source packages, fetched and verified by a private apt, unpacked with Debian's patches.

The machine's own apt configuration is only read, to learn which mirror it uses: the sources that we
want are of another release than the machine's, and adding them to its configuration would change
what the machine installs. Verification is apt's: Release signature by Debian's keyring, then hashes.
"""

import functools
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from daemon.runtime import recipe, shell
from daemon.runtime.shell import BuildError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MACHINE_APT = Path("/etc/apt")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line or stanza of an apt source list."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mirrors:
    """The mirror of Debian itself and the one of its security updates, as the machine uses them."""

    archive: str
    security: str | None


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A source package on disk. ``skipped`` are newer versions that were listed but not to be had."""

    package: str
    version: str
    skipped: tuple[str, ...]
    directory: Path
    files: dict[str, str]
    """SHA-256 of each file of it by name, as the signed lists name them."""

    def record(self) -> dict[str, object]:
        """What the manifest says of it: enough to tell which fixes are in, and to fetch it again."""
        return {
            "package": self.package,
            "version": self.version,
            "skipped": list(self.skipped),
            "files": self.files,
            "patches": patches_of(self.directory),
        }


def parse_stanzas(text: str) -> Iterator[Entry]:
    """Entries of a ``.sources`` file (deb822)."""
    for stanza in re.split(r"\n\s*\n", text):
        lines = "\n".join(line for line in stanza.splitlines() if not line.startswith("#"))
        fields = {
            name.lower(): tuple(value.split())
            for name, value in re.findall(r"^([\w-]+):((?:.*)(?:\n[ \t].*)*)", lines, re.MULTILINE)
        }
        if fields.get("enabled", ("yes",))[0].lower() in ("no", "false"):
            continue
        if "uris" in fields:
            yield Entry(fields["uris"], fields.get("suites", ()), fields.get("components", ()))


def parse_lines(text: str) -> Iterator[Entry]:
    """Entries of a ``.list`` file: ``deb [options] uri suite components…``."""
    for line in text.splitlines():
        found = re.match(r"\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s*)?(\S+)\s+(\S+)([^#]*)", line)
        if found:
            uri, suite, components = found.groups()
            yield Entry((uri,), (suite,), tuple(components.split()))


def choose_mirrors(entries: list[Entry], codename: str) -> Mirrors:
    """The entries that serve this Debian release and its security updates.

    Other vendors name their suites after Debian's too; the component ``main`` tells most of them
    apart, and whoever still slips through fails the signature check.
    """

    def first(suites: set[str]) -> str | None:
        serving = (e for e in entries if suites & set(e.suites) and "main" in e.components)
        return next((entry.uris[0] for entry in serving), None)

    archive = first({codename, "stable"})
    if archive is None:
        raise BuildError(f"apt's configuration names no mirror of Debian {codename}")
    return Mirrors(archive, first({f"{codename}-security", f"{codename}/updates"}))


def machine_mirrors(apt: Path = MACHINE_APT, os_release: Path = Path("/etc/os-release")) -> Mirrors:
    """Where this machine gets Debian from."""
    lists = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    entries = [entry for f in lists if f.exists() for entry in parse_lines(f.read_text())]
    for file in sorted((apt / "sources.list.d").glob("*.sources")):
        entries += parse_stanzas(file.read_text())
    codename = re.search(r"^VERSION_CODENAME=\"?(\w+)", os_release.read_text(), re.MULTILINE)
    return choose_mirrors(entries, codename[1] if codename else "")


def source_list(mirrors: Mirrors) -> str:
    """The private source list: sources only, of the release that we build from, signatures on."""
    suites = {mirrors.archive: f"{recipe.SUITE} {recipe.SUITE}-updates"}
    if mirrors.security:
        suites[mirrors.security] = f"{recipe.SUITE}-security"
    return "\n".join(
        f"Types: deb-src\nURIs: {uri}\nSuites: {names}\nComponents: main\nSigned-By: {KEYRING}\n"
        for uri, names in suites.items()
    )


class PrivateApt:
    """apt with its own lists, cache and state below one directory."""

    def __init__(self, root: Path, mirrors: Mirrors, log: Path) -> None:
        self._root = root
        self._log = log
        for part in ("lists/partial", "cache/archives/partial", "state"):
            (root / part).mkdir(parents=True, exist_ok=True)
        (root / "debian.sources").write_text(source_list(mirrors))

    def _options(self) -> list[str]:
        options = {
            "Dir::Etc::sourcelist": self._root / "debian.sources",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": self._root / "state",
            "Dir::State::lists": self._root / "lists",
            "Dir::Cache": self._root / "cache",
            "APT::Get::AllowUnauthenticated": "false",
            "Acquire::AllowInsecureRepositories": "false",
            # apt would drop to a user who cannot write here.
            "APT::Sandbox::User": "",
            # Files are kept by their hash; a mirror in the middle of an update is retried.
            "Acquire::Retries": "3",
        }
        return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]

    def update(self) -> None:
        """Fetch the signed lists. A missing signature is an error, not a warning."""
        shell.run(["apt-get", *self._options(), "--error-on=any", "update"], self._log)

    def versions(self, package: str) -> list[str]:
        """The versions that the lists name, newest first."""
        text = shell.read(["apt-cache", *self._options(), "showsrc", "--only-source", package])
        names = set(re.findall(r"^Version: (\S+)", text, re.MULTILINE))
        return sorted(names, key=functools.cmp_to_key(compare_versions), reverse=True)

    def download(self, package: str, version: str, into: Path) -> Path:
        """Fetch one version; return its ``.dsc``."""
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        wanted = f"{package}={version}"
        command = ["apt-get", *self._options(), "source", "--download-only", wanted]
        shell.run(command, self._log, cwd=into)
        return next(into.glob("*.dsc"))


def compare_versions(left: str, right: str) -> int:
    """Order by Debian's rules, which only dpkg knows."""
    if left == right:
        return 0
    command = ["dpkg", "--compare-versions", left, "lt", right]
    order = subprocess.run(command, check=False)  # noqa: S603 - versions of signed lists, as words
    return -1 if order.returncode == 0 else 1


def files_of(dsc: Path) -> dict[str, str]:
    """SHA-256 of a source package's files by name: the description's own, and those that it names.

    apt has checked the description by the signed lists, and the files by the description.
    """
    content = dsc.read_bytes()
    field = re.search(
        r"^Checksums-Sha256:[ \t]*\n((?:[ \t].*\n?)+)", content.decode(), re.MULTILINE
    )
    if field is None:
        raise BuildError(f"{dsc.name} names no SHA-256 of its files")
    named = (line.split() for line in field[1].splitlines())
    files = {name: digest for digest, _size, name in named}
    return {dsc.name: hashlib.sha256(content).hexdigest(), **files}


def patches_of(directory: Path) -> list[str]:
    """The patches that Debian applies to upstream's source, in their order."""
    series = directory / "debian" / "patches" / "series"
    lines = series.read_text().splitlines() if series.exists() else []
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def fetch(apt: PrivateApt, package: str, work: Path, log: Path) -> Unpacked:
    """Unpack the newest version that the mirror really has.

    A mirror may list a version whose files have not arrived. The next one down the same signed
    list is taken then, said aloud, and recorded in the manifest.
    """
    versions = apt.versions(package)
    for place, version in enumerate(versions):
        try:
            dsc = apt.download(package, version, work / "download" / package)
        except BuildError as error:
            reason = str(error).splitlines()[-1]
            shell.announce(f"{package} {version} is listed but cannot be fetched: {reason}")
            continue
        directory = work / package
        shell.run(["dpkg-source", "-x", dsc, directory], log)
        return Unpacked(package, version, tuple(versions[:place]), directory, files_of(dsc))
    raise BuildError(f"no version of {package} can be fetched (listed: {versions})")
