"""The loop in virtual time. It plays thousands of machines and days of faults in seconds, and compares the result with
other programs.

Plan, windows, cycle and answers are the code of production. The places, HostFactory, the duration of calls and the
state directory are modelled.
"""
