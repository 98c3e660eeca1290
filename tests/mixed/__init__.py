"""Mixed random load with faults, for long: `make soak-mixed`. A short form runs with the tests of the cluster.

    plan     what each caller does and what goes wrong when, from a seed; pure
    ledger   what callers hold, which faults there were, and what was wrong; pure
    callers  carry out their part of the plan through the client, or byte for byte as the API has it
    harm     does the faults to the cluster
    run      all of it together, and the look at the end

At the end the pods on the cluster are the sandboxes that callers hold, each of them answers with the boot that its
caller was told, holds the files that were written, and ran no command twice; and whatever a caller was refused meanwhile
had a reason that a fault nearby explains.
"""
