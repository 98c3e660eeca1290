"""What the async client and its sync twin share: settings, values, rules. Nothing here opens a socket."""
