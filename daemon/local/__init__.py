"""Local mode's way to start this daemon, in place of a container runtime. Not shipped into pods: their Python lacks what it
needs.
"""
