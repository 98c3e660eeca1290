"""The admission webhook: a labelled pod goes in, the same pod with the daemon comes out.

Imports walk one way: `serve` → `app` → `review` (AdmissionReview ⇄ values) → `inject` (pod → patch);
beside them `certificates` over `rotation`, and `keys`. An admission is a pure function of the request,
the settings and a fresh nonce: no call to the API server, no disk, no side effect.
"""
