"""What is to be done, decided purely: no module here does I/O, reads a clock or logs.

``make_plan`` makes it of what is wanted, seen and remembered; its rooms stand on four floors: ``core``; ``observe`` and
``allocate``; ``finish``, ``collect`` and ``report``; ``plan`` and ``recover``.
"""
