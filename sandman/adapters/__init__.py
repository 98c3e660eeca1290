"""Sandman inside the frameworks that people run; each module needs its framework and none of the others.

`inspect_ai`, `minisweagent`, `swerex`, `harbor` and `nemo_gym` are named as what they plug into. All read where the
gateway is and who is calling as the client does (`Client`). See docs/adapters.md.
"""
