"""Ends of requests, returns and machines: returned, too late, cancelled, too old."""
