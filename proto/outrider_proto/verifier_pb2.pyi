from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FeatureCodec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEATURE_CODEC_UNSPECIFIED: _ClassVar[FeatureCodec]
    FEATURE_CODEC_INT8: _ClassVar[FeatureCodec]
    FEATURE_CODEC_FLOAT32: _ClassVar[FeatureCodec]
    FEATURE_CODEC_BF16: _ClassVar[FeatureCodec]
    FEATURE_CODEC_INT8_GROUPED: _ClassVar[FeatureCodec]
    FEATURE_CODEC_INT4_GROUPED: _ClassVar[FeatureCodec]
    FEATURE_CODEC_LEAN: _ClassVar[FeatureCodec]
    FEATURE_CODEC_LEANER: _ClassVar[FeatureCodec]

class Acceptance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPTANCE_EXACT: _ClassVar[Acceptance]
    ACCEPTANCE_TYPICAL: _ClassVar[Acceptance]

class Finish(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_NOT_YET: _ClassVar[Finish]
    FINISH_EOS: _ClassVar[Finish]
    FINISH_CONTEXT_FULL: _ClassVar[Finish]
    FINISH_LIMIT: _ClassVar[Finish]
    FINISH_CANCELLED: _ClassVar[Finish]
FEATURE_CODEC_UNSPECIFIED: FeatureCodec
FEATURE_CODEC_INT8: FeatureCodec
FEATURE_CODEC_FLOAT32: FeatureCodec
FEATURE_CODEC_BF16: FeatureCodec
FEATURE_CODEC_INT8_GROUPED: FeatureCodec
FEATURE_CODEC_INT4_GROUPED: FeatureCodec
FEATURE_CODEC_LEAN: FeatureCodec
FEATURE_CODEC_LEANER: FeatureCodec
ACCEPTANCE_EXACT: Acceptance
ACCEPTANCE_TYPICAL: Acceptance
FINISH_NOT_YET: Finish
FINISH_EOS: Finish
FINISH_CONTEXT_FULL: Finish
FINISH_LIMIT: Finish
FINISH_CANCELLED: Finish

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("protocol_version", "server_version", "target_name", "target_fingerprint", "tokenizer_fingerprint", "vocab_size", "max_context", "max_nodes", "eos_token_ids", "taps", "target_digest")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TARGET_NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TAPS_FIELD_NUMBER: _ClassVar[int]
    TARGET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    server_version: str
    target_name: str
    target_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    max_context: int
    max_nodes: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    taps: _containers.RepeatedCompositeFieldContainer[Tap]
    target_digest: str
    def __init__(self, protocol_version: _Optional[int] = ..., server_version: _Optional[str] = ..., target_name: _Optional[str] = ..., target_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_context: _Optional[int] = ..., max_nodes: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., taps: _Optional[_Iterable[_Union[Tap, _Mapping]]] = ..., target_digest: _Optional[str] = ...) -> None: ...

class Tap(_message.Message):
    __slots__ = ("fingerprint", "family", "width", "newest_only")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    NEWEST_ONLY_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    family: str
    width: int
    newest_only: bool
    def __init__(self, fingerprint: _Optional[str] = ..., family: _Optional[str] = ..., width: _Optional[int] = ..., newest_only: _Optional[bool] = ...) -> None: ...

class ClientFrame(_message.Message):
    __slots__ = ("open", "draft", "decode", "cancel", "ping", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: Open
    draft: Draft
    decode: Decode
    cancel: Cancel
    ping: Ping
    close: Close
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., draft: _Optional[_Union[Draft, _Mapping]] = ..., decode: _Optional[_Union[Decode, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("opened", "verdict", "features", "pong")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    verdict: Verdict
    features: Features
    pong: Pong
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., features: _Optional[_Union[Features, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol_version", "target_fingerprint", "tokenizer_fingerprint", "tap", "codec", "sampling", "session_id", "committed_len")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TAP_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    target_fingerprint: str
    tokenizer_fingerprint: str
    tap: str
    codec: FeatureCodec
    sampling: Sampling
    session_id: str
    committed_len: int
    def __init__(self, protocol_version: _Optional[int] = ..., target_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., tap: _Optional[str] = ..., codec: _Optional[_Union[FeatureCodec, str]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., session_id: _Optional[str] = ..., committed_len: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed", "acceptance", "epsilon", "alpha", "rules", "min_p")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    acceptance: Acceptance
    epsilon: float
    alpha: float
    rules: TokenRules
    min_p: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., acceptance: _Optional[_Union[Acceptance, str]] = ..., epsilon: _Optional[float] = ..., alpha: _Optional[float] = ..., rules: _Optional[_Union[TokenRules, _Mapping]] = ..., min_p: _Optional[float] = ...) -> None: ...

class TokenRules(_message.Message):
    __slots__ = ("answer_from", "json_schema", "frequency_penalty", "presence_penalty", "logit_bias", "repetition_penalty")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    ANSWER_FROM_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    answer_from: int
    json_schema: str
    frequency_penalty: float
    presence_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    repetition_penalty: float
    def __init__(self, answer_from: _Optional[int] = ..., json_schema: _Optional[str] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., repetition_penalty: _Optional[float] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session_id", "resumed", "kept_len", "kept_hash", "max_context", "max_nodes", "eos_token_ids", "server_draft", "request_sampling", "token_rules", "target_digest")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    KEPT_LEN_FIELD_NUMBER: _ClassVar[int]
    KEPT_HASH_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SERVER_DRAFT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_RULES_FIELD_NUMBER: _ClassVar[int]
    TARGET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    resumed: bool
    kept_len: int
    kept_hash: bytes
    max_context: int
    max_nodes: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    server_draft: bool
    request_sampling: bool
    token_rules: bool
    target_digest: str
    def __init__(self, session_id: _Optional[str] = ..., resumed: _Optional[bool] = ..., kept_len: _Optional[int] = ..., kept_hash: _Optional[bytes] = ..., max_context: _Optional[int] = ..., max_nodes: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., server_draft: _Optional[bool] = ..., request_sampling: _Optional[bool] = ..., token_rules: _Optional[bool] = ..., target_digest: _Optional[str] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("seq", "base_len", "context", "root", "tokens", "parents", "features_from", "assumes", "logprobs", "codec", "sampling")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FROM_FIELD_NUMBER: _ClassVar[int]
    ASSUMES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    seq: int
    base_len: int
    context: bytes
    root: int
    tokens: bytes
    parents: bytes
    features_from: int
    assumes: bytes
    logprobs: int
    codec: FeatureCodec
    sampling: Sampling
    def __init__(self, seq: _Optional[int] = ..., base_len: _Optional[int] = ..., context: _Optional[bytes] = ..., root: _Optional[int] = ..., tokens: _Optional[bytes] = ..., parents: _Optional[bytes] = ..., features_from: _Optional[int] = ..., assumes: _Optional[bytes] = ..., logprobs: _Optional[int] = ..., codec: _Optional[_Union[FeatureCodec, str]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ...) -> None: ...

class Decode(_message.Message):
    __slots__ = ("seq", "base_len", "context", "root", "max_tokens", "features_from", "tree", "logprobs", "codec", "sampling")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FROM_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    seq: int
    base_len: int
    context: bytes
    root: int
    max_tokens: int
    features_from: int
    tree: ServerTree
    logprobs: int
    codec: FeatureCodec
    sampling: Sampling
    def __init__(self, seq: _Optional[int] = ..., base_len: _Optional[int] = ..., context: _Optional[bytes] = ..., root: _Optional[int] = ..., max_tokens: _Optional[int] = ..., features_from: _Optional[int] = ..., tree: _Optional[_Union[ServerTree, _Mapping]] = ..., logprobs: _Optional[int] = ..., codec: _Optional[_Union[FeatureCodec, str]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ...) -> None: ...

class ServerTree(_message.Message):
    __slots__ = ("breadth", "levels", "budget", "auto")
    BREADTH_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    AUTO_FIELD_NUMBER: _ClassVar[int]
    breadth: int
    levels: int
    budget: int
    auto: bool
    def __init__(self, breadth: _Optional[int] = ..., levels: _Optional[int] = ..., budget: _Optional[int] = ..., auto: _Optional[bool] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("seq",)
    SEQ_FIELD_NUMBER: _ClassVar[int]
    seq: int
    def __init__(self, seq: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("seq", "path", "bonus", "finish", "queue_us", "verify_us", "stale", "tokens", "draft_us", "logprobs", "tree_budget", "draft_levels")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    BONUS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TREE_BUDGET_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LEVELS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    path: bytes
    bonus: int
    finish: Finish
    queue_us: int
    verify_us: int
    stale: bool
    tokens: bytes
    draft_us: int
    logprobs: Logprobs
    tree_budget: int
    draft_levels: int
    def __init__(self, seq: _Optional[int] = ..., path: _Optional[bytes] = ..., bonus: _Optional[int] = ..., finish: _Optional[_Union[Finish, str]] = ..., queue_us: _Optional[int] = ..., verify_us: _Optional[int] = ..., stale: _Optional[bool] = ..., tokens: _Optional[bytes] = ..., draft_us: _Optional[int] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ..., tree_budget: _Optional[int] = ..., draft_levels: _Optional[int] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("chosen", "top_tokens", "top")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    chosen: bytes
    top_tokens: bytes
    top: bytes
    def __init__(self, chosen: _Optional[bytes] = ..., top_tokens: _Optional[bytes] = ..., top: _Optional[bytes] = ...) -> None: ...

class Features(_message.Message):
    __slots__ = ("seq", "first", "num_rows", "width", "codec", "payload", "last", "tap_us", "padding")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    TAP_US_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    seq: int
    first: int
    num_rows: int
    width: int
    codec: FeatureCodec
    payload: bytes
    last: bool
    tap_us: int
    padding: bytes
    def __init__(self, seq: _Optional[int] = ..., first: _Optional[int] = ..., num_rows: _Optional[int] = ..., width: _Optional[int] = ..., codec: _Optional[_Union[FeatureCodec, str]] = ..., payload: _Optional[bytes] = ..., last: _Optional[bool] = ..., tap_us: _Optional[int] = ..., padding: _Optional[bytes] = ...) -> None: ...

class ManifestRequest(_message.Message):
    __slots__ = ("drafter", "weights")
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    drafter: str
    weights: str
    def __init__(self, drafter: _Optional[str] = ..., weights: _Optional[str] = ...) -> None: ...

class BundleManifest(_message.Message):
    __slots__ = ("bundle_id", "target_name", "target_fingerprint", "tokenizer_fingerprint", "tap", "drafter", "weights", "files", "drafters", "weights_on_offer")
    BUNDLE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TAP_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_ON_OFFER_FIELD_NUMBER: _ClassVar[int]
    bundle_id: str
    target_name: str
    target_fingerprint: str
    tokenizer_fingerprint: str
    tap: str
    drafter: str
    weights: str
    files: _containers.RepeatedCompositeFieldContainer[BundleFile]
    drafters: _containers.RepeatedScalarFieldContainer[str]
    weights_on_offer: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bundle_id: _Optional[str] = ..., target_name: _Optional[str] = ..., target_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., tap: _Optional[str] = ..., drafter: _Optional[str] = ..., weights: _Optional[str] = ..., files: _Optional[_Iterable[_Union[BundleFile, _Mapping]]] = ..., drafters: _Optional[_Iterable[str]] = ..., weights_on_offer: _Optional[_Iterable[str]] = ...) -> None: ...

class BundleFile(_message.Message):
    __slots__ = ("name", "size_bytes", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("bundle_id", "name", "offset")
    BUNDLE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    bundle_id: str
    name: str
    offset: int
    def __init__(self, bundle_id: _Optional[str] = ..., name: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
