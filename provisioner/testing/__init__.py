"""Tests for kinds of places: the promises that a backend must keep, and faults for the way to its place."""
