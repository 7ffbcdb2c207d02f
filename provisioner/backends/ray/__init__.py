"""The kind ``ray``: machines as jobs of a Ray cluster, by its Jobs API."""
