"""Real bug fixes of real packages, solved and evaluated in sandboxes the way SWE-bench does it.

A task is two consecutive releases of an open-source package: the first has a bug, the second has
its fix and the tests that show it. Sources and the test runner are downloaded by pip when they are
needed and are never part of this repository. Tests and the demo use it; nothing else may.

    catalog    what the tasks are: releases, hashes, the tests that must turn green
    fetch      pip, the cache, materials of a task in memory
    archives   source distributions and wheels as plain trees; trees as tars for upload
    unified    the patch format; also runs inside the sandbox, which may have no `git`
    runner     how the tests are started inside and how their report is read outside
    agent      the change as an agent would make it: find the file, replace text, write it back
    workshop   one sandbox with a buggy release in it, and the steps that are taken there
    scenario   the whole walk: solve in one sandbox, evaluate in a fresh one
    contract   what all this asks of a client
    local      a stand-in for the client that uses one directory of this machine
    calibrate  proves the catalog's facts again and writes the lists of tests
"""
