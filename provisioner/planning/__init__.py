"""Planning: every decision of a cycle. The modules use no I/O, clock or logger.

``make_plan`` makes a plan from intent, observations and memory. The packages form four layers, and a package imports
only from lower layers. From the top: ``plan`` and ``recover``; ``finish``, ``cleanup`` and ``report``; ``observe`` and
``allocate``; ``core``.
"""
