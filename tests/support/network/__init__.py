"""A bank's network. It has its own certificate authority, servers with its certificates, and a proxy.

The proxy is the only way to these servers.
"""
