"""Evaluations by the thousand: SWE-bench's own flow over a task list in its row format, in sandboxes of Sandman.

`Client.evaluate` and `sandman eval` are the way in (`docs/evaluation.md`). What decides is pure and apart from what talks: rows and
predictions are parsed once into values that do not change (`rows`, `predictions`), a log is judged by its text alone (`log`, `parsers`,
`grading`), and which fault earns another attempt is a table (`faults`). `attempt` and `runner` do the rest.
"""
