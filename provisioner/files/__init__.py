"""Files of any kind: only regular ones are opened; whose they are; YAML as people write it."""
