"""What is to be done, decided purely: values in, values out. No module here does I/O, reads a clock or logs.

``make_plan`` is given what is wanted, what was seen, what is remembered, the limits in force and the loop time. It
returns what to do, why, and what to remember. The same arguments always make the same plan.
"""
