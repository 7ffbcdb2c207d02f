"""The loop in virtual time: days of faults on thousands of machines pass in seconds. The results are compared with the
results of other programs' formulas.

Plan, windows, cycle and answers are production code. Models stand in for places, HostFactory, the duration of calls,
and the state.
"""
