"""The state that outlives a process: intent, memory, answers, markers and locks.

Files or a Kubernetes API keep the state. Only the modules that open the state, and commands about files, rely on files.
The modules here do not depend on any cloud.
"""
