"""What is to be done, decided purely: no module here does I/O, reads a clock or logs.

From what is wanted, seen and remembered, the limits in force and the loop time, ``make_plan`` makes what to do, why,
and what to remember: from the same arguments always the same plan.
"""
