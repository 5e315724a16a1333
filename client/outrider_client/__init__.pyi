from .async_client import AsyncClient as AsyncClient
from .async_client import Completion as Completion
from .client import Client as Client
from .connection.access import Access as Access
from .connection.diagnosis import TrustError as TrustError
from .connection.grpc_transport import GrpcConnection as GrpcConnection
from .connection.grpc_transport import GrpcTransport as GrpcTransport
from .connection.link_state import LinkState as LinkState
from .connection.policy import Backoff as Backoff
from .connection.policy import Patience as Patience
from .connection.policy import Timeouts as Timeouts
from .connection.transport import Connection as Connection
from .connection.transport import LocalTransport as LocalTransport
from .connection.transport import Transport as Transport
from .core.answer_text import AnswerText as AnswerText
from .core.answer_text import Span as Span
from .core.config import NO_DRAFTER as NO_DRAFTER
from .core.config import ClientConfig as ClientConfig
from .core.config import LastResort as LastResort
from .core.config import Mode as Mode
from .core.config import OnReconnect as OnReconnect
from .core.config import Privacy as Privacy
from .core.events import Committed as Committed
from .core.events import Cycle as Cycle
from .core.events import Event as Event
from .core.events import Finished as Finished
from .core.events import LinkChanged as LinkChanged
from .core.events import Private as Private
from .core.events import RolledBack as RolledBack
from .core.events import Stats as Stats
from .core.events import Unverified as Unverified
from .core.events import Verified as Verified
from .core.events import Warned as Warned
from .core.head_statistics import AcceptedMeans as AcceptedMeans
from .core.head_statistics import HeadUse as HeadUse
from .core.prompt import Prompt as Prompt
from .core.prompt import PromptMessage as PromptMessage
from .core.prompt import Segment as Segment
from .core.protocol import ClientFrame as ClientFrame
from .core.protocol import Codec as Codec
from .core.protocol import Decode as Decode
from .core.protocol import Draft as Draft
from .core.protocol import LinkError as LinkError
from .core.protocol import OutriderError as OutriderError
from .core.protocol import Reason as Reason
from .core.protocol import Refusal as Refusal
from .core.protocol import Sampling as Sampling
from .core.protocol import ServerDescription as ServerDescription
from .core.protocol import ServerFrame as ServerFrame
from .core.protocol import UsageError as UsageError
from .core.protocol import Verdict as Verdict
from .core.protocol import Violation as Violation
from .core.statistics import Statistics as Statistics
from .core.statistics import TimeSplit as TimeSplit
from .models.local_models import LocalModels as LocalModels
from .privacy.detector import Detector as Detector
from .privacy.fences import parse_fences as parse_fences
from .pull.pull import PullConfig as PullConfig
from .pull.pull import pull_bundle as pull_bundle
from .text.logprobs import TokenLogprobs as TokenLogprobs
from .text.transcript import FinishReason as FinishReason
from .text.transcript import Origin as Origin

__all__ = [
    "NO_DRAFTER",
    "AcceptedMeans",
    "Access",
    "AnswerText",
    "AsyncClient",
    "Backoff",
    "Client",
    "ClientConfig",
    "ClientFrame",
    "Codec",
    "Committed",
    "Completion",
    "Connection",
    "Cycle",
    "Decode",
    "Detector",
    "Draft",
    "Event",
    "FinishReason",
    "Finished",
    "GrpcConnection",
    "GrpcTransport",
    "HeadUse",
    "LastResort",
    "LinkChanged",
    "LinkError",
    "LinkState",
    "LocalModels",
    "LocalTransport",
    "Mode",
    "OnReconnect",
    "Origin",
    "OutriderError",
    "Patience",
    "Privacy",
    "Private",
    "Prompt",
    "PromptMessage",
    "PullConfig",
    "Reason",
    "Refusal",
    "RolledBack",
    "Sampling",
    "Segment",
    "ServerDescription",
    "ServerFrame",
    "Span",
    "Statistics",
    "Stats",
    "TimeSplit",
    "Timeouts",
    "TokenLogprobs",
    "Transport",
    "TrustError",
    "Unverified",
    "UsageError",
    "Verdict",
    "Verified",
    "Violation",
    "Warned",
    "parse_fences",
    "pull_bundle",
]
