"""Compiles to byte code. Run by the built interpreter, since the format is its own.

Reads ``{"optimize": n, "files": [[source, target, name shown in tracebacks], …]}`` on stdin. The mode
is unchecked-hash: no time stamps, so the bytes depend on the source alone, and an import does not
ask the file system about a source.
"""

import json
import py_compile
import sys

request = json.load(sys.stdin)
for source, target, shown in request["files"]:
    py_compile.compile(
        source,
        cfile=target,
        dfile=shown,
        doraise=True,
        optimize=request["optimize"],
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
