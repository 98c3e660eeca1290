"""Malformed requests, many of them, to real processes of the gateway, the webhook and the daemon."""
