"""The server inside each sandbox: runs commands, moves files, keeps PID 1's duties.

It runs in images that it knows nothing of, beside processes that may be hostile, as a static Python
with a cut-down standard library. Hence the charter:

- Standard library only, and of this repository only `sandman.{wire,claims,handles,fields,names,errors,version}`
  and, for files, `sandman.{sparse,tar,pack,unpack,descent}`.
- Nothing of the image is needed: no shell, libc, user, /proc, /dev, /tmp, writable root. What is
  there is used; what is not makes one call fail with a typed error, never the daemon.
- A thread a connection, blocking calls, `poll`: asyncio would double memory and start time. Every
  import is paid at each pod's start, so no dataclasses, logging, http, urllib, re of our own.
- Whatever a command does ends as a result or as a typed error of `sandman.errors`, within bounded
  memory and time. What is measured inside is only as honest as the sandbox.
- Only `daemon.init` waits for children and `daemon.spawn` makes them: a second waiter falsifies
  exit codes.

A request's way, and with it the imports, from the top down: `__main__` opens the `listener` and
starts `serve` (composition root) with `server` (threads) and `front` (health); `application` (what
serves which path) and `routes` (who may); `execution`, `handles`, `transfers`, `handshake` (one
conversation each), `sessions` with `shells`, `session` and what is below it (shells that stay; loaded at
the first such call); `runner` (sees a command through) and `follow` (who reads one that others started);
`replies` and `uploads` (JSON and frames); `attach` (bytes between a command and its caller), `outcome`
and `connection`; `stop` (ends trees) and `exchange`; `processes` (the table), `drain` and `http1`
(sans-IO); `process` (one command, its readers) and `launch` (what to start); `streams` (its pipes);
`spawn` (starts it) and `state`; `identity` (as whom files are worked on); `init` (reaps) and `files`;
at the bottom `users`, `lease`, `tree`, `usage`, `outputs`, `kernel`, `signals`, `log`, `config`.
`delivery` is the sub-command `copy`; `wrap` runs a pod's own command.
"""
