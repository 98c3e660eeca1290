"""The daemon on cgroup v2, in a small virtual machine: the measures that this machine's own kernel may not give."""
