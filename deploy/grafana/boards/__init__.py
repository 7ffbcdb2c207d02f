"""The dashboards, one module each; the rows of panels that they share; and their conversion to Grafana's JSON."""
