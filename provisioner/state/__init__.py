"""The state that outlives a process: intent, memory, answers, markers and locks.

Only the code that opens the state, and commands about files, know that the state is kept in files. No module here knows
a cloud.
"""
