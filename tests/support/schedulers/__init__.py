"""Real schedulers of Debian for tests. An unprivileged user runs them, with their own ports and directories."""
