"""The types of fields in requests, with their limits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from penstock.core import limits

Priority = Annotated[int, Meta(ge=limits.priority_min, le=limits.priority_max)]
Delay = Annotated[int, Meta(ge=0, le=limits.delay_ms_max)]
Timeout = Annotated[int, Meta(ge=0, le=limits.timeout_ms_max)]
Attempts = Annotated[int, Meta(ge=1, le=limits.attempts_max)]
Lease = Annotated[int, Meta(ge=1, le=limits.lease_ms_max)]
Wait = Annotated[int, Meta(ge=0, le=limits.claim_wait_ms_max)]
# Names and texts are stored in text columns and sent in headers, so they never contain NUL.
Key = Annotated[str, Meta(min_length=1, max_length=limits.key_chars_max, pattern=r"^[^\x00]*\Z")]
Text = Annotated[str, Meta(pattern=r"^[^\x00]*\Z")]
LogText = Annotated[str, Meta(max_length=limits.log_message_chars_max, pattern=r"^[^\x00]*\Z")]
Message = Annotated[str, Meta(max_length=limits.progress_message_chars_max, pattern=r"^[^\x00]*\Z")]
Every = Annotated[int, Meta(ge=1, le=limits.repeat_every_ms_max)]
ScheduleText = Annotated[str, Meta(max_length=limits.schedule_chars_max)]
Zone = Annotated[str, Meta(min_length=1, max_length=limits.timezone_chars_max, pattern=r"^[^\x00]*\Z")]
#: The name of a job. The workers of bunqueue's own client use it to choose what to do.
Name = Annotated[str, Meta(min_length=1, max_length=limits.name_chars_max, pattern=r"^[^\x00]*\Z")]
Lines = Annotated[int, Meta(ge=0, le=limits.keep_logs_max)]
Backoff = Annotated[int, Meta(ge=0, le=limits.backoff_ms_max)]
Ids = Annotated[list[str], Meta(max_length=limits.ids_max)]
#: A whole number that JavaScript can represent exactly.
Positive = Annotated[int, Meta(ge=1, le=limits.whole_number_max)]
