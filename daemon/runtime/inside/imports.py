"""Imports the modules named on the command line and tells what failed and what was loaded.

Run by the built interpreter, in the full library to learn what the daemon needs and in the pruned
one to prove that it has it. So this file may itself import nothing that is not always there.

    imports.py DIRECTORY MODULE…   ->   lines of  "failed"|"loaded" TAB module TAB error|file
"""

import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])

for name in sys.argv[2:]:
    try:
        __import__(name)  # on purpose: the modules of a build
    except BaseException as error:  # noqa: BLE001 even SystemExit: the module is then no module
        print("failed", name, repr(error).replace("\n", " "), sep="\t")  # noqa: T201 the answer

for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file:
        print("loaded", name, file, sep="\t")  # noqa: T201 the answer
