"""Real schedulers of Debian for tests, started as an unprivileged user with ports and directories of their own."""
