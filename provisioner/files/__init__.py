"""Files of any kind: replaced whole or not at all, owned by the right user, and YAML as people write it."""
