"""Table of the commands of the Redis protocol that this server answers: arity, rights and description."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Final

from penstock.core import limits
from penstock.doors.permissions import resp_rights
from penstock.doors.resp import replies


class Kind(Enum):
    """When and how a command is executed."""

    PUBLISH = "publish"
    PUSH = "push"
    PULL = "pull"
    DONE = "done"
    FAIL = "fail"
    NOW = "now"  #: it concerns the connection only, so it need not wait for earlier commands
    AFTER = "after"  #: after all earlier commands are answered


_MANY: Final = limits.resp_args_max


class RespCommand:
    """One command. ``fewest`` and ``most`` count its name as well; ``group`` is the heading under which clients list it."""

    def __init__(
        self,
        syntax: str,
        fewest: int,
        most: int,
        kind: Kind,
        summary: str,
        *,
        public: bool = False,
        group: str = "connection",
        wrong_arity: str = "",
    ) -> None:
        self.syntax = syntax
        self.name = syntax.split(maxsplit=1)[0]
        self.fewest = fewest
        self.most = most
        self.kind = kind
        self.summary = summary
        self.group = group
        self.named = group != "connection"  #: its first argument is the name of a topic, a queue or a job
        self.public = public  #: it needs no authentication
        self.rights = resp_rights(self.name)
        self.wrong_arity = replies.error(wrong_arity) if wrong_arity else replies.wrong_arity(self.name)

    @property
    def arity(self) -> int:
        """Return the arity as Redis reports it: negative if it is a minimum."""
        return self.fewest if self.fewest == self.most else -self.fewest


_topics: Final = partial(RespCommand, group="pubsub")
_jobs: Final = partial(RespCommand, group="list")
_ALL: Final = (
    # Topics.
    _topics(
        "PUBLISH topic message",
        3,
        3,
        Kind.PUBLISH,
        "Publish a message to a topic",
        wrong_arity="invalid number of args, want: 3",
    ),
    _topics(
        "SUBSCRIBE topic",
        2,
        2,
        Kind.AFTER,
        "Receive the messages of a topic, one at a time",
        wrong_arity="invalid number of args, want: 2",
    ),
    _topics(
        "RECEIVE topic [ACK] [WAIT ms] [WITHDACKS]",
        2,
        6,
        Kind.AFTER,
        "Receive and hold the next message of a topic; ACK: acknowledge the held one first",
    ),
    _topics("ACK", 1, 1, Kind.AFTER, "Acknowledge the held message"),
    _topics("NACK", 1, 1, Kind.AFTER, "Return the held message to the front of its topic"),
    _topics("BACK", 1, 1, Kind.AFTER, "Return the held message to the back of its topic"),
    _topics("DACK [seconds]", 1, 2, Kind.AFTER, "Return the held message to the front after some seconds (1)"),
    _topics("TOPICS", 1, _MANY, Kind.AFTER, "List the topics of the namespace"),
    # Jobs.
    _jobs("PUSH queue payload [PRIORITY n] [DELAY ms] [ID id]", 3, 9, Kind.PUSH, "Push a job to a queue; returns its id"),
    _jobs("PULL queue [COUNT n] [WAIT ms] [DETACH]", 2, 7, Kind.PULL, "Claim jobs; returns id, token and payload of each"),
    _jobs("DONE id [token]", 2, 3, Kind.DONE, "Acknowledge a pulled job"),
    _jobs("FAIL id [token] [error]", 2, 4, Kind.FAIL, "Report a failed attempt: the job is retried, or dead"),
    # The connection.
    RespCommand("AUTH [namespace] token", 2, 3, Kind.AFTER, "Show a token, and select the namespace", public=True),
    RespCommand(
        "HELLO [protocol [AUTH namespace token] [SETNAME name]]",
        *(1, _MANY, Kind.AFTER, "Select the protocol, 2 or 3, and show a token"),
        public=True,
    ),
    RespCommand("QUIT", 1, _MANY, Kind.AFTER, "Close the connection", public=True),
    RespCommand("RESET", 1, 1, Kind.AFTER, "Reset the connection to its first state", public=True),
    RespCommand("PING [text]", 1, _MANY, Kind.NOW, "Test the connection"),
    RespCommand("ECHO text", 2, 2, Kind.NOW, "Return the text"),
    RespCommand("SELECT index", 2, 2, Kind.NOW, "Select a database: only 0; AUTH selects namespaces"),
    RespCommand("INFO [section ...]", 1, _MANY, Kind.NOW, "Return figures of the server"),
    RespCommand("CLIENT subcommand [argument ...]", 2, _MANY, Kind.NOW, "Name the connection, or describe it"),
    RespCommand("COMMAND [COUNT | DOCS | INFO | LIST]", 1, _MANY, Kind.NOW, "List the commands"),
)
COMMANDS: Final = {entry.name.encode(): entry for entry in _ALL}
