"""One module for each command of ``provisioner``: its options, and what it does. ``cli`` assembles them."""
