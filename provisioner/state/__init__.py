"""The state that outlives a process: intent, memory, answers, markers and locks.

Two sorts of modules depend on the state being kept in files: the modules that open the state, and commands about files.
The modules here do not depend on any cloud.
"""
