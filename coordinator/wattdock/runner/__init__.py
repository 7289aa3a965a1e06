"""runner."""

from wattdock.runner.client import LACKS_MEMORY, PROTOCOL_VERSION, RunnerClient
from wattdock.runner.wire import check_arrival, load_request, pass_workload

__all__ = ["LACKS_MEMORY", "PROTOCOL_VERSION", "RunnerClient", "check_arrival", "load_request", "pass_workload"]
