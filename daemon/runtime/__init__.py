"""Builds the Python that the daemon runs on, and packs both for delivery.

The daemon goes into images that hold nothing it could rely on: no shell, no libc, no Python. So it
brings one fully static CPython (musl), a standard library cut down to what it imports, and nothing
else. This package makes that interpreter from Debian's patched sources, composes the directory
that is mounted at ``/.sandman``, and packs it into an OCI image. It runs on a developer's or
builder's Debian machine and is never shipped; the daemon must not import it.

    python -m daemon.runtime build      the interpreter, cached by the hash of its recipe
    python -m daemon.runtime tree       the directory that is delivered into pods
    python -m daemon.runtime toolchain  the interpreter with the full standard library, as a tar
    python -m daemon.runtime image      the directory as an OCI image
"""
