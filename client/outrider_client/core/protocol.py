"""The contract's errors and frames that callers of the client meet, under one roof with the client's own types."""

from outrider_proto.errors import LinkError as LinkError
from outrider_proto.errors import OutriderError as OutriderError
from outrider_proto.errors import Reason as Reason
from outrider_proto.errors import Refusal as Refusal
from outrider_proto.errors import UsageError as UsageError
from outrider_proto.errors import Violation as Violation
from outrider_proto.frames import ClientFrame as ClientFrame
from outrider_proto.frames import Codec as Codec
from outrider_proto.frames import Decode as Decode
from outrider_proto.frames import Draft as Draft
from outrider_proto.frames import Sampling as Sampling
from outrider_proto.frames import ServerDescription as ServerDescription
from outrider_proto.frames import ServerFrame as ServerFrame
from outrider_proto.frames import Verdict as Verdict
