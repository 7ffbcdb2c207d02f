"""How requests, returns and machines end: given back, too late, cancelled, too old."""
