"""What the loop tells about itself: metrics, log, health page, notes for people."""
