"""What the two services, gateway and webhook, share: HTTPS serving, certificates, Kubernetes.

Not for callers: the client never imports it (import-linter holds that), and its dependencies come
with the extra `service`.
"""
