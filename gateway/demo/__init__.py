"""`python -m gateway.demo`: the gateway's main job, shown on two real engines with a real small model."""
