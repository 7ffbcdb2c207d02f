"""The loop: its cycles and its threads.

A cycle observes, plans, records and acts. The threads observe pools, carry out batches and wake the loop.
"""
