from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Arrival(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARRIVAL_UNSPECIFIED: _ClassVar[Arrival]
    ARRIVAL_BATCH: _ClassVar[Arrival]
    ARRIVAL_CLOSED: _ClassVar[Arrival]
    ARRIVAL_OPEN: _ClassVar[Arrival]
    ARRIVAL_SINGLE: _ClassVar[Arrival]
ARRIVAL_UNSPECIFIED: Arrival
ARRIVAL_BATCH: Arrival
ARRIVAL_CLOSED: Arrival
ARRIVAL_OPEN: Arrival
ARRIVAL_SINGLE: Arrival

class Span(_message.Message):
    __slots__ = ("name", "start_ns", "end_ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    start_ns: int
    end_ns: int
    def __init__(self, name: _Optional[str] = ..., start_ns: _Optional[int] = ..., end_ns: _Optional[int] = ...) -> None: ...

class ClockReading(_message.Message):
    __slots__ = ("boot_id", "time_namespace", "monotonic_ns")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MONOTONIC_NS_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    time_namespace: int
    monotonic_ns: int
    def __init__(self, boot_id: _Optional[str] = ..., time_namespace: _Optional[int] = ..., monotonic_ns: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("protocol_version", "backend", "framework", "framework_version", "package_versions", "python_version", "arrivals", "engine_arguments", "clock", "supported_versions")
    class PackageVersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_VERSION_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    backend: str
    framework: str
    framework_version: str
    package_versions: _containers.ScalarMap[str, str]
    python_version: str
    arrivals: _containers.RepeatedScalarFieldContainer[Arrival]
    engine_arguments: _containers.RepeatedScalarFieldContainer[str]
    clock: ClockReading
    supported_versions: str
    def __init__(self, protocol_version: _Optional[int] = ..., backend: _Optional[str] = ..., framework: _Optional[str] = ..., framework_version: _Optional[str] = ..., package_versions: _Optional[_Mapping[str, str]] = ..., python_version: _Optional[str] = ..., arrivals: _Optional[_Iterable[_Union[Arrival, str]]] = ..., engine_arguments: _Optional[_Iterable[str]] = ..., clock: _Optional[_Union[ClockReading, _Mapping]] = ..., supported_versions: _Optional[str] = ...) -> None: ...

class RandomWeights(_message.Message):
    __slots__ = ("low", "high", "seed")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    low: float
    high: float
    seed: int
    def __init__(self, low: _Optional[float] = ..., high: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("model_path", "dtype", "engine_args_json", "random_weights", "trust_remote_code", "gpu_uuids", "place")
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    RANDOM_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TRUST_REMOTE_CODE_FIELD_NUMBER: _ClassVar[int]
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    model_path: str
    dtype: str
    engine_args_json: str
    random_weights: RandomWeights
    trust_remote_code: bool
    gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    place: NodePlace
    def __init__(self, model_path: _Optional[str] = ..., dtype: _Optional[str] = ..., engine_args_json: _Optional[str] = ..., random_weights: _Optional[_Union[RandomWeights, _Mapping]] = ..., trust_remote_code: bool = ..., gpu_uuids: _Optional[_Iterable[str]] = ..., place: _Optional[_Union[NodePlace, _Mapping]] = ...) -> None: ...

class NodePlace(_message.Message):
    __slots__ = ("nodes", "rank", "head_address", "head_port")
    NODES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    HEAD_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HEAD_PORT_FIELD_NUMBER: _ClassVar[int]
    nodes: int
    rank: int
    head_address: str
    head_port: int
    def __init__(self, nodes: _Optional[int] = ..., rank: _Optional[int] = ..., head_address: _Optional[str] = ..., head_port: _Optional[int] = ...) -> None: ...

class LoadEvent(_message.Message):
    __slots__ = ("progress", "loaded")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    progress: LoadProgress
    loaded: Loaded
    def __init__(self, progress: _Optional[_Union[LoadProgress, _Mapping]] = ..., loaded: _Optional[_Union[Loaded, _Mapping]] = ...) -> None: ...

class LoadProgress(_message.Message):
    __slots__ = ("stage",)
    STAGE_FIELD_NUMBER: _ClassVar[int]
    stage: str
    def __init__(self, stage: _Optional[str] = ...) -> None: ...

class Loaded(_message.Message):
    __slots__ = ("environment", "effective_engine_args_json", "span")
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_ENGINE_ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    environment: RunnerEnvironment
    effective_engine_args_json: str
    span: Span
    def __init__(self, environment: _Optional[_Union[RunnerEnvironment, _Mapping]] = ..., effective_engine_args_json: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class RunnerEnvironment(_message.Message):
    __slots__ = ("visible_gpu_uuids", "used_gpu_uuids", "cuda_version", "nccl_version", "framework", "framework_version", "python_version", "package_versions", "parallelism_json", "parameter_count", "weight_bytes", "warnings")
    class PackageVersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VISIBLE_GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    USED_GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    NCCL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_VERSION_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_JSON_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_COUNT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    visible_gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    used_gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    cuda_version: str
    nccl_version: str
    framework: str
    framework_version: str
    python_version: str
    package_versions: _containers.ScalarMap[str, str]
    parallelism_json: str
    parameter_count: int
    weight_bytes: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, visible_gpu_uuids: _Optional[_Iterable[str]] = ..., used_gpu_uuids: _Optional[_Iterable[str]] = ..., cuda_version: _Optional[str] = ..., nccl_version: _Optional[str] = ..., framework: _Optional[str] = ..., framework_version: _Optional[str] = ..., python_version: _Optional[str] = ..., package_versions: _Optional[_Mapping[str, str]] = ..., parallelism_json: _Optional[str] = ..., parameter_count: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ...) -> None: ...

class Workload(_message.Message):
    __slots__ = ("arrival", "in_flight", "arrival_ns", "min_duration_s", "min_requests", "max_output_tokens", "ignore_eos", "sampling", "seed", "chat_template", "return_text", "return_token_ids", "settle_s", "first_output_tokens", "chat_template_kwargs_json", "template_time_s", "prompts", "stop")
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_NS_FIELD_NUMBER: _ClassVar[int]
    MIN_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    MIN_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    RETURN_TEXT_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SETTLE_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_KWARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_TIME_S_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    arrival: Arrival
    in_flight: int
    arrival_ns: _containers.RepeatedScalarFieldContainer[int]
    min_duration_s: float
    min_requests: int
    max_output_tokens: int
    ignore_eos: bool
    sampling: Sampling
    seed: int
    chat_template: bool
    return_text: bool
    return_token_ids: bool
    settle_s: float
    first_output_tokens: _containers.RepeatedScalarFieldContainer[int]
    chat_template_kwargs_json: str
    template_time_s: int
    prompts: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, arrival: _Optional[_Union[Arrival, str]] = ..., in_flight: _Optional[int] = ..., arrival_ns: _Optional[_Iterable[int]] = ..., min_duration_s: _Optional[float] = ..., min_requests: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., ignore_eos: bool = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., chat_template: bool = ..., return_text: bool = ..., return_token_ids: bool = ..., settle_s: _Optional[float] = ..., first_output_tokens: _Optional[_Iterable[int]] = ..., chat_template_kwargs_json: _Optional[str] = ..., template_time_s: _Optional[int] = ..., prompts: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("text", "token_ids", "messages_json", "max_output_tokens")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: bytes
    messages_json: str
    max_output_tokens: int
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., messages_json: _Optional[str] = ..., max_output_tokens: _Optional[int] = ...) -> None: ...

class PromptChunk(_message.Message):
    __slots__ = ("prompts",)
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    prompts: _containers.RepeatedCompositeFieldContainer[Prompt]
    def __init__(self, prompts: _Optional[_Iterable[_Union[Prompt, _Mapping]]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("workload", "prompts")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    workload: Workload
    prompts: PromptChunk
    def __init__(self, workload: _Optional[_Union[Workload, _Mapping]] = ..., prompts: _Optional[_Union[PromptChunk, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("at_ns", "output_tokens", "requests_finished", "requests_submitted", "pass_over")
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    PASS_OVER_FIELD_NUMBER: _ClassVar[int]
    at_ns: int
    output_tokens: int
    requests_finished: int
    requests_submitted: int
    pass_over: bool
    def __init__(self, at_ns: _Optional[int] = ..., output_tokens: _Optional[int] = ..., requests_finished: _Optional[int] = ..., requests_submitted: _Optional[int] = ..., pass_over: bool = ...) -> None: ...

class RequestRecord(_message.Message):
    __slots__ = ("index", "intended_ns", "submitted_ns", "first_token_ns", "finished_ns", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "finish_reason", "text", "output_ids", "replica", "token_gaps_ns", "max_output_tokens", "prompt_hash")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INTENDED_NS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_NS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    TOKEN_GAPS_NS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_HASH_FIELD_NUMBER: _ClassVar[int]
    index: int
    intended_ns: int
    submitted_ns: int
    first_token_ns: int
    finished_ns: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    finish_reason: str
    text: str
    output_ids: TokenIds
    replica: int
    token_gaps_ns: _containers.RepeatedScalarFieldContainer[int]
    max_output_tokens: int
    prompt_hash: int
    def __init__(self, index: _Optional[int] = ..., intended_ns: _Optional[int] = ..., submitted_ns: _Optional[int] = ..., first_token_ns: _Optional[int] = ..., finished_ns: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., finish_reason: _Optional[str] = ..., text: _Optional[str] = ..., output_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., replica: _Optional[int] = ..., token_gaps_ns: _Optional[_Iterable[int]] = ..., max_output_tokens: _Optional[int] = ..., prompt_hash: _Optional[int] = ...) -> None: ...

class RequestChunk(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RequestRecord]
    def __init__(self, requests: _Optional[_Iterable[_Union[RequestRecord, _Mapping]]] = ...) -> None: ...

class TokenSeries(_message.Message):
    __slots__ = ("at_ns", "output_tokens")
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    at_ns: _containers.RepeatedScalarFieldContainer[int]
    output_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, at_ns: _Optional[_Iterable[int]] = ..., output_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class StepSeries(_message.Message):
    __slots__ = ("start_ns", "end_ns", "prompt_tokens", "decoded_tokens", "sequences", "context_tokens")
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    start_ns: _containers.RepeatedScalarFieldContainer[int]
    end_ns: _containers.RepeatedScalarFieldContainer[int]
    prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    decoded_tokens: _containers.RepeatedScalarFieldContainer[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    context_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start_ns: _Optional[_Iterable[int]] = ..., end_ns: _Optional[_Iterable[int]] = ..., prompt_tokens: _Optional[_Iterable[int]] = ..., decoded_tokens: _Optional[_Iterable[int]] = ..., sequences: _Optional[_Iterable[int]] = ..., context_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Serving(_message.Message):
    __slots__ = ("client_cpu_share", "client_late_s", "tokens_without_ids", "others_counted")
    CLIENT_CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_LATE_S_FIELD_NUMBER: _ClassVar[int]
    TOKENS_WITHOUT_IDS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_COUNTED_FIELD_NUMBER: _ClassVar[int]
    client_cpu_share: float
    client_late_s: float
    tokens_without_ids: int
    others_counted: bool
    def __init__(self, client_cpu_share: _Optional[float] = ..., client_late_s: _Optional[float] = ..., tokens_without_ids: _Optional[int] = ..., others_counted: bool = ...) -> None: ...

class PassSummary(_message.Message):
    __slots__ = ("span", "requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "prompt_repeats", "serving", "rendered_sha256", "template_asked_time", "drafted_tokens", "accepted_tokens")
    SPAN_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_REPEATS_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    RENDERED_SHA256_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_ASKED_TIME_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    span: Span
    requests: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    prompt_repeats: int
    serving: Serving
    rendered_sha256: str
    template_asked_time: bool
    drafted_tokens: int
    accepted_tokens: int
    def __init__(self, span: _Optional[_Union[Span, _Mapping]] = ..., requests: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., prompt_repeats: _Optional[int] = ..., serving: _Optional[_Union[Serving, _Mapping]] = ..., rendered_sha256: _Optional[str] = ..., template_asked_time: bool = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ("heartbeat", "requests", "tokens", "summary", "steps")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    heartbeat: Heartbeat
    requests: RequestChunk
    tokens: TokenSeries
    summary: PassSummary
    steps: StepSeries
    def __init__(self, heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., requests: _Optional[_Union[RequestChunk, _Mapping]] = ..., tokens: _Optional[_Union[TokenSeries, _Mapping]] = ..., summary: _Optional[_Union[PassSummary, _Mapping]] = ..., steps: _Optional[_Union[StepSeries, _Mapping]] = ...) -> None: ...

class DiagnoseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Finding(_message.Message):
    __slots__ = ("name", "status", "value", "advice")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    name: str
    status: str
    value: str
    advice: str
    def __init__(self, name: _Optional[str] = ..., status: _Optional[str] = ..., value: _Optional[str] = ..., advice: _Optional[str] = ...) -> None: ...

class DiagnoseResponse(_message.Message):
    __slots__ = ("findings",)
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class TextPair(_message.Message):
    __slots__ = ("context", "continuation")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    context: str
    continuation: str
    def __init__(self, context: _Optional[str] = ..., continuation: _Optional[str] = ...) -> None: ...

class LogLikelihoodRequest(_message.Message):
    __slots__ = ("pairs", "batch_size")
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedCompositeFieldContainer[TextPair]
    batch_size: int
    def __init__(self, pairs: _Optional[_Iterable[_Union[TextPair, _Mapping]]] = ..., batch_size: _Optional[int] = ...) -> None: ...

class PairScore(_message.Message):
    __slots__ = ("log_likelihood", "is_greedy", "tokens", "left_out")
    LOG_LIKELIHOOD_FIELD_NUMBER: _ClassVar[int]
    IS_GREEDY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    log_likelihood: float
    is_greedy: bool
    tokens: int
    left_out: int
    def __init__(self, log_likelihood: _Optional[float] = ..., is_greedy: bool = ..., tokens: _Optional[int] = ..., left_out: _Optional[int] = ...) -> None: ...

class LogLikelihoodResponse(_message.Message):
    __slots__ = ("scores", "span")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[PairScore]
    span: Span
    def __init__(self, scores: _Optional[_Iterable[_Union[PairScore, _Mapping]]] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class RunProgramRequest(_message.Message):
    __slots__ = ("source", "timeout_s")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    source: str
    timeout_s: float
    def __init__(self, source: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class RunProgramResponse(_message.Message):
    __slots__ = ("exit_code",)
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    def __init__(self, exit_code: _Optional[int] = ...) -> None: ...

class UnloadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnloadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
