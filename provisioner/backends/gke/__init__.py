"""The ``gke`` kind of place: the pods of one namespace, made from one pod spec."""
