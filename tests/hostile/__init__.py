"""Attacks on what the loop lets in from outside: each ends in time, in little memory, and with a sentence."""
