"""The dashboards, written as code: `python -m grafana` writes the JSON that Grafana reads."""
