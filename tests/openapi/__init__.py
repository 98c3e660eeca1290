"""schemathesis against a live gateway: a real one in local mode, with real sandboxes, by what it says of itself."""
