"""What a gateway adds to a request, measured beside its peers; README.md says how to repeat it."""
