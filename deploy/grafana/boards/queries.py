"""Queries in PromQL for the provisioners, pools and templates that are chosen on the board."""

from __future__ import annotations


def selector(name: str, labels: str = "instance", **fixed: str) -> str:
    """Return a PromQL selector of the metric ``name``. ``labels``: labels, separated by blanks, whose values the
    operator chooses on the board. ``fixed``: labels with fixed values."""
    matches = [f'{label}=~"${label}"' for label in labels.split()] + [
        f'{key}="{value}"' for key, value in fixed.items()
    ]
    prefix = "" if name.startswith("process_") else "hf_provisioner_"
    return f"{prefix}{name}{{{', '.join(matches)}}}"


def increase(metric: str, by: str) -> str:
    """Return a query for the increase of a counter in five minutes."""
    return f"sum by ({by}) (increase({metric}[5m]))"


def quantile(share: float, metric: str, by: str = "") -> str:
    """Return a query for a quantile of a histogram over ten minutes. ``share``: the quantile, from 0 to 1."""
    name, _, matches = metric.partition("{")
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate({name}_bucket{{{matches}[10m])))"


def label_value(label: str) -> str:
    """Return ``{{LABEL}}``, Grafana's placeholder in the name of a line. Grafana shows the line's value of this label
    in its place."""
    return f"{{{{{label}}}}}"


AGE = "time() - max by ({by}) ({metric})"
"""Format of a query for the seconds since a time. The time is the value of a metric, in epoch seconds."""
