"""The setting `nodes`: what can be spread, and what makes two experiments one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from wattdock.config import ExperimentConfig

NODES = {"agents": ["node2:7407"], "pairing": "pair.pem"}
VLLM = {"backend": "vllm", "vllm": {"tensor_parallel_size": 4}}


def test_gpus_are_shared_out_over_the_nodes() -> None:
    """Four over two nodes: two of each; `count` is of each node already."""
    config = ExperimentConfig.model_validate({**VLLM, "nodes": NODES})
    assert (config.gpus_asked, config.node_count) == (2, 2)
    counted = ExperimentConfig.model_validate({"backend": "fake", "gpus": {"count": 3}, "nodes": NODES})
    assert counted.gpus_asked == 3


def test_how_many_nodes_is_identity_and_which_is_not() -> None:
    """The same study on other nodes is the same; on one node it is the one from before there were nodes."""
    first = ExperimentConfig.model_validate({**VLLM, "nodes": NODES})
    other = ExperimentConfig.model_validate(
        {**VLLM, "nodes": {"agents": ["n9:1"], "pairing": "/x", "clock_limit_j": 9}}
    )
    one = ExperimentConfig.model_validate(VLLM)
    assert first.experiment_id == other.experiment_id != one.experiment_id
    assert "nodes" not in one.model_dump(mode="json")
    assert first.load_key != one.load_key
    assert ExperimentConfig.model_validate({**VLLM, "nodes": 2}).experiment_id == first.experiment_id


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (1, "greater than or equal to 2"),
        (66, "less than or equal to 65"),
        ({"agents": [], "pairing": "p"}, "greater than or equal to 2"),
        ({"agents": ["a:1"]}, "belong together"),
        ({"count": 2, "pairing": "p"}, "belong together"),
        ({"count": 3, **NODES}, "1 agents beside the head"),
        ("2", "dictionary"),
        (True, "valid integer"),
        (2.0, "dictionary"),
    ],
)
def test_nodes_are_a_number_of_a_job_or_agents_with_their_pairing(nodes: object, said: str) -> None:
    """Nothing in between."""
    with pytest.raises(ValidationError) as refused:
        ExperimentConfig.model_validate({**VLLM, "nodes": nodes})
    assert said in str(refused.value)


def test_a_stored_study_is_read_back_as_it_was() -> None:
    """The count is stored beside agents."""
    for nodes in (2, NODES, {"count": 2, "clock_limit_j": 9.0}):
        config = ExperimentConfig.model_validate({**VLLM, "nodes": nodes})
        assert ExperimentConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"backend": "pytorch"}, "pytorch cannot spread a model over nodes"),
        ({"backend": "measure", "measure": {"command": "true"}}, "measure cannot"),
        ({"backend": "vllm", "vllm": {"tensor_parallel_size": 3}}, "3 GPUs cannot be shared out over 2 nodes"),
        ({**VLLM, "gpus": [0, 1]}, "gpus: [...]"),
        ({**VLLM, "launcher": "docker"}, "launcher: docker"),
        ({**VLLM, "container": {"locked": True}}, "container.locked"),
        ({"backend": "vllm", "vllm": {"data_parallel_size": 2}}, "data_parallel_size"),
    ],
)
def test_what_cannot_be_spread_is_refused_with_the_setting(settings: dict[str, Any], said: str) -> None:
    """Before anything is connected to."""
    with pytest.raises(ValidationError, match="nodes: ") as refused:
        ExperimentConfig.model_validate({**settings, "nodes": NODES})
    assert said in str(refused.value)


@pytest.mark.parametrize("address", ["node2", ":7407", "node2:port", "no de:1", "node2:7407/x", "-oProxy=x:1 y"])
def test_an_agent_is_named_by_host_and_port(address: str) -> None:
    """No other word reaches a socket."""
    with pytest.raises(ValidationError, match="agents"):
        ExperimentConfig.model_validate({**VLLM, "nodes": {**NODES, "agents": [address]}})
