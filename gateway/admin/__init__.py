"""The operators' port: backends, queue and requests, to look at and to steer."""
