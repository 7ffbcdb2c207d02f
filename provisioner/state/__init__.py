"""The state that outlives a process: intent, memory, answers, markers and locks.

The state is kept in files or in a Kubernetes API. Only the modules that open the state, and commands about files,
require files. The modules here do not depend on any cloud.
"""
