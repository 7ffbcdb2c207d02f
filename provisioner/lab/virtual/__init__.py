"""The loop in virtual time: days of faults on thousands of machines pass in seconds. The results are compared with
those of other programs' formulas.

Plan, windows, cycle and answers are the code of production. Places, HostFactory, the duration of calls and the state
are models.
"""
