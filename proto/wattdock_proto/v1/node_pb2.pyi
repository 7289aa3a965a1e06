from wattdock_proto.v1 import runner_pb2 as _runner_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeNodeResponse(_message.Message):
    __slots__ = ("protocol", "wattdock", "commit", "user")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WATTDOCK_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    wattdock: str
    commit: str
    user: str
    def __init__(self, protocol: _Optional[int] = ..., wattdock: _Optional[str] = ..., commit: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class ClockAnswer(_message.Message):
    __slots__ = ("received_ns", "replied_ns", "fault")
    RECEIVED_NS_FIELD_NUMBER: _ClassVar[int]
    REPLIED_NS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    received_ns: int
    replied_ns: int
    fault: str
    def __init__(self, received_ns: _Optional[int] = ..., replied_ns: _Optional[int] = ..., fault: _Optional[str] = ...) -> None: ...

class NodeOrder(_message.Message):
    __slots__ = ("plan_order", "start_meter", "launch", "load", "stop_runner_s", "edge", "read_meter")
    PLAN_ORDER_FIELD_NUMBER: _ClassVar[int]
    START_METER_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    STOP_RUNNER_S_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    READ_METER_FIELD_NUMBER: _ClassVar[int]
    plan_order: PlanOrder
    start_meter: int
    launch: LaunchOrder
    load: LoadOrder
    stop_runner_s: float
    edge: Nothing
    read_meter: ReadOrder
    def __init__(self, plan_order: _Optional[_Union[PlanOrder, _Mapping]] = ..., start_meter: _Optional[int] = ..., launch: _Optional[_Union[LaunchOrder, _Mapping]] = ..., load: _Optional[_Union[LoadOrder, _Mapping]] = ..., stop_runner_s: _Optional[float] = ..., edge: _Optional[_Union[Nothing, _Mapping]] = ..., read_meter: _Optional[_Union[ReadOrder, _Mapping]] = ...) -> None: ...

class PlanOrder(_message.Message):
    __slots__ = ("experiments_json",)
    EXPERIMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    experiments_json: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, experiments_json: _Optional[_Iterable[str]] = ...) -> None: ...

class LaunchOrder(_message.Message):
    __slots__ = ("experiment", "head_address")
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    HEAD_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    experiment: int
    head_address: str
    def __init__(self, experiment: _Optional[int] = ..., head_address: _Optional[str] = ...) -> None: ...

class LoadOrder(_message.Message):
    __slots__ = ("request", "model_files", "timeout_s")
    class ModelFilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_FILES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    request: _runner_pb2.LoadRequest
    model_files: _containers.ScalarMap[str, str]
    timeout_s: float
    def __init__(self, request: _Optional[_Union[_runner_pb2.LoadRequest, _Mapping]] = ..., model_files: _Optional[_Mapping[str, str]] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class ReadOrder(_message.Message):
    __slots__ = ("after_ns", "stop")
    AFTER_NS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    after_ns: int
    stop: bool
    def __init__(self, after_ns: _Optional[int] = ..., stop: bool = ...) -> None: ...

class NodeAnswer(_message.Message):
    __slots__ = ("error", "plans_json", "environment_json", "edge", "timeline_files")
    class TimelineFilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PLANS_JSON_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FILES_FIELD_NUMBER: _ClassVar[int]
    error: NodeError
    plans_json: _containers.RepeatedScalarFieldContainer[str]
    environment_json: str
    edge: EdgeSeen
    timeline_files: _containers.ScalarMap[str, bytes]
    def __init__(self, error: _Optional[_Union[NodeError, _Mapping]] = ..., plans_json: _Optional[_Iterable[str]] = ..., environment_json: _Optional[str] = ..., edge: _Optional[_Union[EdgeSeen, _Mapping]] = ..., timeline_files: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class NodeError(_message.Message):
    __slots__ = ("what", "remedy", "cause", "exit_code")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    what: str
    remedy: str
    cause: str
    exit_code: int
    def __init__(self, what: _Optional[str] = ..., remedy: _Optional[str] = ..., cause: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...

class EdgeSeen(_message.Message):
    __slots__ = ("lease_fault", "cpu_others_share", "pids")
    LEASE_FAULT_FIELD_NUMBER: _ClassVar[int]
    CPU_OTHERS_SHARE_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    lease_fault: str
    cpu_others_share: float
    pids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease_fault: _Optional[str] = ..., cpu_others_share: _Optional[float] = ..., pids: _Optional[_Iterable[int]] = ...) -> None: ...
