"""The dashboards for Grafana: their files are what the code makes, and every metric is on one of them."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from gateway.families import table
from grafana.files import FOLDER, texts

NAMES = sorted(texts())
each_dashboard = pytest.mark.parametrize("name", NAMES)


def panels(name: str) -> list[dict[str, Any]]:
    """All panels of a dashboard's file that show something."""
    found: list[dict[str, Any]] = json.loads((FOLDER / name).read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def queries(name: str) -> list[str]:
    """All expressions of a dashboard's file."""
    return [target["expr"] for panel in panels(name) for target in panel["targets"]]


def test_the_files_are_what_the_code_makes() -> None:
    """`python -m grafana` writes them anew."""
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == texts()


@each_dashboard
def test_grafana_s_own_types_read_a_dashboard(name: str) -> None:
    """And find in it what was written."""
    text = (FOLDER / name).read_text()
    read = Dashboard.from_json(json.loads(text))
    assert json.dumps(read, cls=JSONEncoder, indent=2, sort_keys=True) + "\n" == text


@each_dashboard
def test_panels_lie_beside_each_other(name: str) -> None:
    """None on top of another, each with its own id and title, all within the width."""
    every = json.loads((FOLDER / name).read_text())["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert all(panel["title"] for panel in every)
    places = [panel["gridPos"] for panel in every]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_every_metric_has_a_panel_and_every_panel_its_metrics() -> None:
    """What nobody looks at need not be measured; what is not measured cannot be looked at."""
    whole = {name for name, _, _ in table()}
    parts = {f"{name}{part}": name for name in whole for part in ("", "_bucket", "_sum", "_count")}
    shown = {
        found for name in NAMES for query in queries(name) for found in re.findall(r"slotgate_\w+", query)
    }
    assert shown <= set(parts)
    assert {parts[name] for name in shown} == whole


@each_dashboard
def test_labels_of_queries_are_labels_of_their_metrics(name: str) -> None:
    """A selector of a label that a metric does not have matches nothing, and Grafana stays silent."""
    labels = {metric: set(given) for metric, given, _ in table()}
    selectors = [pair for query in queries(name) for pair in re.findall(r"(slotgate_\w+)\{([^}]*)\}", query)]
    assert selectors
    for metric, selector in selectors:
        plain = next(one for one in labels if re.fullmatch(f"{one}(_bucket|_sum|_count)?", metric))
        assert set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', selector)) <= labels[plain]


def test_grafana_is_told_where_both_lie() -> None:
    """The dashboards' folder and the data source, as compose mounts and names them."""
    provisioning = FOLDER.parent / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards/slotgate.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    assert source["isDefault"]
