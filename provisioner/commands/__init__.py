"""The commands of ``provisioner``. Each is a module with its options and its work. The module ``cli`` makes the command
line from them."""
