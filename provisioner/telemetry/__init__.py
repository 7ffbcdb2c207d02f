"""The loop's reports on itself: metrics, log, health and status pages, pool status, timelines."""
