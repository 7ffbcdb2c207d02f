"""The commands of ``provisioner``, each a module with its options and its work. ``cli`` assembles them."""
