"""The commands of ``provisioner``. Each command is a module that adds its options and does its work. The module ``cli``
makes the command line from these modules."""
