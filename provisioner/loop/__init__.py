"""The loop: cycles that observe, plan, record and act, and the threads that observe pools, carry out batches and
wake the loop."""
