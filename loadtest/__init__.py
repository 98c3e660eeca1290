"""Load on any gateway: scenarios for Locust, and a report of what they met (docs/loadtest.md).

Its own process in its own environment: importing Locust patches the standard library. What needs neither Locust nor
gevent (numbers, shapes, reports) imports neither, and is tested with everything else.
"""
