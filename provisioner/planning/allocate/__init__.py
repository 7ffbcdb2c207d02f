"""Allocation of machines to pools: capacity, budget, order, and creates."""
