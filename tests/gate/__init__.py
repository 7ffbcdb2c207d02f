"""Run the stages of the gate, record a complete run, and select the stages that a change needs."""
