"""The state that outlives a process: intent, memory, answers, markers and locks.

Only the code that opens the state, and commands about files, depend on the state being kept in files. The modules here
do not depend on any cloud.
"""
