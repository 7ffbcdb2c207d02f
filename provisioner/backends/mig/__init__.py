"""The ``mig`` kind of place: the instances of one managed instance group."""
