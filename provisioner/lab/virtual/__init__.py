"""The loop in virtual time: thousands of machines and days of faults in seconds, compared with other programs.

Plan, windows, cycle and answers are the production code. The places, HostFactory, the duration of calls and the state
directory are models.
"""
