"""The loop in virtual time: thousands of machines and days of faults in seconds, compared with the formulas of other
programs.

Plan, windows, cycle and answers are the code of production. Places, HostFactory, the duration of calls and the state
are models.
"""
