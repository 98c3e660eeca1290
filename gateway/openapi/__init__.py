"""What callers may ask and are answered, as OpenAPI 3.1: each module describes the routes of one subject.

`document` puts them together; a test compares them with the real table of routes, both ways, another the members
of bodies and answers with what parses and makes them.
"""
