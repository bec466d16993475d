"""A worker's end of the channel. Whatever gets lost on the way is sent again, and counts once.

Both directions are numbered: ``say`` sends message n until the driver has it, which takes in each number once;
``listen`` asks for the messages after number n, and the driver keeps them until it is asked for later ones.
"""

from __future__ import annotations

import http
import http.client
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from nas.core.errors import ConfigurationError, CorruptError, HeirloomError, ServerError
from nas.executors.remote.protocol import MAX_BODY_BYTES, Message, checked_welcome, dumps, heard, loads

CONNECT_S = 10.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0
MISTAKES = (401, 404, 409)
"""Statuses that no repetition mends: another token, another program, another version."""
GONE = 410


class DriverLostError(HeirloomError):
    """Nobody answers any more: the driver is gone, or the way to it."""


class GivenUpError(HeirloomError):
    """The driver has given this worker up; its trial runs elsewhere."""


class ChannelClient:
    """Speaks to a driver; one worker's. Any thread may call ``say``, one ``listen``.

    Args:
        url: Where the driver listens.
        token: The session's.
        retry_s: How long a request is repeated before the driver counts as gone; ``join`` sets what the driver says.
    """

    def __init__(self, url: str, token: str, retry_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self.retry_s = retry_s
        self.id = uuid.uuid4().hex
        self._read_s = CONNECT_S
        self._speaking, self._listening = (Connection(self.url, token) for _ in range(2))
        self._lock = threading.Lock()
        self._n_said = 0
        self._n_heard = 0
        self._has_given_up = False

    def join(self, greeting: Mapping[str, Any]) -> Message:
        """Introduces the worker, and gives what the driver says of its search.

        Raises:
            ConfigurationError: the driver refuses: another token or version.
            ServerError: nobody answers, or no driver.
        """
        try:
            welcome = checked_welcome(self._post(self._speaking, "/join", {"worker": self.id, **greeting}))
        except DriverLostError as error:
            raise ServerError(
                f"nobody answers at {self.url} ({error.__cause__}); is the driver still there?"
            ) from error
        except CorruptError as error:
            raise ServerError(f"{self.url} does not answer as a driver does: {error}") from error
        self.retry_s, self._read_s = float(welcome["lost_after_s"]), float(welcome["poll_s"]) + CONNECT_S
        return welcome

    def say(self, message: Message) -> None:
        """Tells the driver something; returns when it has it.

        Raises:
            DriverLostError: nobody answers.
            GivenUpError: the driver listens to this worker no more.
        """
        with self._lock:
            self._post(self._speaking, "/say", {"worker": self.id, "number": self._n_said + 1, "message": message})
            self._n_said += 1

    def listen(self) -> list[Message]:
        """What the driver says next; nothing after seconds in which it had nothing to say. Also the heartbeat.

        Raises:
            DriverLostError, GivenUpError: as for ``say``.
            CorruptError: the driver says what makes no sense.
        """
        answer = self._post(self._listening, "/listen", {"worker": self.id, "after": self._n_heard})
        messages = heard(answer, self._n_heard)
        self._n_heard += len(messages)
        return messages

    def confirm(self) -> None:
        """Says that all was heard; for the last message, after which the driver goes: not for long."""
        with suppress(HeirloomError):
            self._post(self._listening, "/listen", {"worker": self.id, "after": self._n_heard}, retry_s=LAST_PAUSE_S)

    def give_up(self) -> None:
        """Repeats no request any more: nobody needs to be told anything."""
        self._has_given_up = True

    def close(self) -> None:
        """Gives up, and closes the connections; no other thread may be within a call for long."""
        self.give_up()
        if self._lock.acquire(timeout=LAST_PAUSE_S):
            self._speaking.close()
            self._lock.release()
        self._listening.close()

    def _post(
        self, connection: Connection, path: str, body: Mapping[str, Any], retry_s: float | None = None
    ) -> Message:
        data, pause_s = dumps(body), FIRST_PAUSE_S
        retry_s = self.retry_s if retry_s is None else retry_s
        give_up_s = time.monotonic() + retry_s
        while True:
            failed: Exception
            try:
                status, answer = connection.post(path, data, self._read_s)
                if status == http.HTTPStatus.OK:
                    return loads(answer)
                failed = _refusal(status, answer, self.url)
            except CorruptError:  # an OSError, too, but no repetition mends it
                raise
            except (OSError, http.client.HTTPException) as error:
                failed = error
            if self._has_given_up or time.monotonic() + pause_s > give_up_s:
                raise DriverLostError(f"the driver was not heard of for {retry_s:g} s") from failed
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)


class Connection:
    """A connection that is kept, and made anew where it broke; one thread's at a time.

    On the standard library: an ask takes three requests, and by httpx it took half as long again.
    """

    def __init__(self, url: str, token: str) -> None:
        try:
            parts = urlsplit(url)
            if not parts.hostname:
                raise ValueError("no host")
            kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}[parts.scheme]
            self._http = kind(parts.hostname, parts.port)
        except (ValueError, KeyError, http.client.InvalidURL) as error:
            raise ConfigurationError(f"channel={url}: must be http://HOST:PORT, as the driver printed it") from error
        self._prefix = parts.path
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}

    def post(self, path: str, data: bytes, timeout_s: float) -> tuple[int, bytes]:
        """The status and the body of the answer.

        Raises:
            OSError: there is no way, or nothing was heard for ``timeout_s``.
            HTTPException: the answer broke off.
            CorruptError: it has no end.
        """
        try:
            if self._http.sock is None:
                self._http.timeout = CONNECT_S
                self._http.connect()
            self._http.sock.settimeout(timeout_s)
            self._http.request("POST", self._prefix + path, data, self._headers)
            answer = self._http.getresponse()
            body = answer.read(MAX_BODY_BYTES + 1)
            if len(body) > MAX_BODY_BYTES:
                raise CorruptError(f"an answer of more than {MAX_BODY_BYTES} bytes")
            return answer.status, body
        except BaseException:
            self._http.close()
            raise

    def close(self) -> None:
        """Closes it; a later request makes it anew."""
        self._http.close()


def _refusal(status: int, answer: bytes, url: str) -> HeirloomError:
    """What a refusal means: raised where no repetition mends it."""
    try:
        why = str(loads(answer).get("error"))
    except HeirloomError:
        why = f"status {status}"
    if status in MISTAKES:
        raise ConfigurationError(f"{url}: {why[:300]}")
    if status == GONE:
        raise GivenUpError(why[:300])
    if status < 500:
        raise HeirloomError(f"{url}: {why[:300]}")
    return HeirloomError(why[:300])
