"""Queries in PromQL, of the chosen provisioners and, where it can be, of the chosen pools and templates."""

from __future__ import annotations


def chosen(name: str, labels: str = "instance", **fixed: str) -> str:
    """A metric of ours, of the chosen ``labels`` (separated by blanks) and of these values."""
    matches = [f'{label}=~"${label}"' for label in labels.split()] + [
        f'{key}="{value}"' for key, value in fixed.items()
    ]
    prefix = "" if name.startswith("process_") else "hf_provisioner_"
    return f"{prefix}{name}{{{', '.join(matches)}}}"


def rose(metric: str, by: str) -> str:
    """How much a counter rose in five minutes."""
    return f"sum by ({by}) (increase({metric}[5m]))"


def quantile(share: float, metric: str, by: str = "") -> str:
    """A quantile of a histogram over ten minutes."""
    name, _, matches = metric.partition("{")
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate({name}_bucket{{{matches}[10m])))"


def each(label: str) -> str:
    """A line's name: the value of its label."""
    return f"{{{{{label}}}}}"


AGE = "time() - max by ({by}) ({metric})"
"""A form: the seconds since the time that a metric holds."""
