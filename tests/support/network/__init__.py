"""A bank's network: an authority of its own, servers that it has signed, and a proxy as the only way to them."""
