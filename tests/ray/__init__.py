"""Tests on a real Ray, installed from PyPI into an environment of its own."""
