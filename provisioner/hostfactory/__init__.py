"""What HostFactory's own files, calls and environment look like."""

MAX_NUMBER = 10_000
"""HF's own upper limit for a template's maxNumber; it also stands for "unlimited" (docs/hostfactory.md: maxNumber)."""
