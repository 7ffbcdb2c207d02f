"""The dashboards: one module each, the rows that they share, and their conversion to Grafana's JSON."""
