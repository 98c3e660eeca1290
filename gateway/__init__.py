"""The gateway: allocates sandboxes and forwards commands and files to them.

A request walks one way, and imports with it: serve → app → routes → auth → policy → pool | proxy →
provider | upstream → allocation | registry → model. It keeps nothing that it cannot rebuild from
the API server, never runs a command itself, and never dials an address that a caller gave.
"""
