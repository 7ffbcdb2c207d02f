"""Run the stages of the gate, record a complete run, and select what a change needs."""
