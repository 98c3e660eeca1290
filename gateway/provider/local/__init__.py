"""Sandboxes of local mode: processes of this machine in the place of pods.

provider   what the pool asks for, done to values in memory; keeps pools at their size, as a ReplicaSet does
pods       how such a value changes; pure
life       one sandbox's process, from its image to its end
images     names of images → directories, archives, registries, the machine's own root
isolation  what this machine can keep apart, found by trying
"""
