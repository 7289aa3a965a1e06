"""runner."""

from wattdock.runner.client import PROTOCOL_VERSION, RunnerClient
from wattdock.runner.wire import check_arrival, load_request, pass_workload

__all__ = ["PROTOCOL_VERSION", "RunnerClient", "check_arrival", "load_request", "pass_workload"]
