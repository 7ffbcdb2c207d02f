"""The loop in virtual time: thousands of machines and days of faults in seconds, judged and compared with others.

Plan, windows, cycle and answers are those of production; modelled are the places, HostFactory, the calls' time, and
what keeps the state.
"""
