"""Planning: every decision of a cycle. The modules use no I/O, clock or logger.

``make_plan`` makes a plan of intent, observations and memory. The packages import each other only downwards, in four
layers: ``plan`` and ``recover``; ``finish``, ``collect`` and ``report``; ``observe`` and ``allocate``; ``core``.
"""
