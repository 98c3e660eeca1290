"""What a command may do to the daemon of its own sandbox: the daemon answers rightly, or not at all.

The sandboxes are those of `tests.conformance`: the daemon as process 1 under runc, as root and as a user
who is not, with the capabilities and the system calls that a pod has.
"""
