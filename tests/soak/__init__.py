"""Many commands to one daemon for a long time: `make soak`. A short form runs with the tests."""
