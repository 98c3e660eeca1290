"""The real daemon on its own static Python, in file systems of all kinds, judged by what callers expect.

`rootfs` makes the file systems and `container` runs one under runc, as containerd would and without a
cluster; `cells` is the matrix of both. `direct` is the real client, shown the way to a daemon without a
gateway. Tests are named after the points of the list of behaviour that frameworks ask of a sandbox.
"""
