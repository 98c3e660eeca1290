"""Measurements that need no cluster; their figures stand in `docs/benchmarks.md`."""
