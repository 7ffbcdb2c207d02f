"""Tests for kinds of places: the promises that a backend must keep, and faults of its connection to a place."""
