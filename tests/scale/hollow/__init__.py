"""One process that is the daemon of every simulated pod.

KWOK gives each pod an address below 127.0.0.0/8, and whoever connects to one of them comes here. HTTP, tokens, claims,
leases, exec and its frames are the daemon's own modules; what is hollow is what lies beneath: commands are a few that are
answered without a process, files are kept in memory.
"""
