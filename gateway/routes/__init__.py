"""Requests in, values down; values up, responses out. Only here is a Request."""
