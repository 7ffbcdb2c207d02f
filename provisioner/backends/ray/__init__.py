"""The kind ``ray``: pilots as jobs of a Ray cluster, by its Jobs API."""
