"""The dashboards: one module each, the rows that they share, and how they become Grafana's JSON."""
