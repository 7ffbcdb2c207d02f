"""A bank's network: a certificate authority of its own, servers with certificates of this authority, and a proxy that
is the only way to these servers."""
