"""The loop's output for operators and tools: metrics, log, health and status pages, pool status, timelines."""
