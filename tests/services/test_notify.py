"""Telling people: real web and mail servers, real terminals, real databases, and all the ways they fail."""

from __future__ import annotations

import contextlib
import email
import fcntl
import json
import logging
import os
import pty
import select
import socket
import ssl
import subprocess
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.message import Message as Letter
from email.policy import default as letters
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller as SmtpServer
from aiosmtpd.smtp import AuthResult
from certipy import Certipy
from sqlalchemy import select as query

from gpudev_core import notices
from gpudev_core.models import Request
from gpudev_core.portal import open_portal
from gpudev_core.sessions import MARKER, SessionRecord, Sessions
from gpudev_core.settings import Email, load
from gpudev_core.store import Store
from gpudev_core.tables import DeliveryRow, ReservationRow
from gpudev_services.controller import __main__ as controller
from gpudev_services.notify import postman as postman_module
from gpudev_services.notify.channel import Message, SendFailed, Undeliverable
from gpudev_services.notify.feed import Feed
from gpudev_services.notify.mail import Mail, address_of, letter_of
from gpudev_services.notify.postman import Postman, channels
from gpudev_services.notify.terminal import Terminals
from gpudev_services.notify.webhook import Webhook

START = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
SECRET = "hunter2"
SHORT_S = 0.3
LONG_S = 20.0


def a_message(**values: Any) -> Message:
    given = {
        "notice_id": 7,
        "reservation_id": "r1",
        "user": "ada",
        "name": "vision-ft",
        "kind": "ends_in_30",
        "text": "30 minutes left. vision-ft ends at 15:04 UTC. Programs stop then. Files are gone then.",
        "due_at": START,
        "at": START,
        **values,
    }
    return Message(**given)


def every_text_of(error: BaseException) -> str:
    return f"{error} {error!r}"


# Webhook ------------------------------------------------------------------------------------------------


class Hook(ThreadingHTTPServer):
    """A web server that answers what it is told to, or nothing until it is let go."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HookHandler)
        self.status, self.headers, self.hangs = 200, {}, False
        self.let_go = threading.Event()
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/{SECRET}"


class HookHandler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        self.server.bodies.append(json.loads(body))
        self.server.keys.append(self.headers["Idempotency-Key"])
        if self.server.hangs:
            self.server.let_go.wait(LONG_S)
        with contextlib.suppress(OSError):
            self.send_response(self.server.status)
            for name, value in self.server.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.let_go.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def url_file(hook: Hook, tmp_path: Path) -> Path:
    path = tmp_path / "hook"
    path.write_text(hook.url + "\n")
    return path


def test_a_webhook_gets_words_and_fields(hook: Hook, url_file: Path) -> None:
    Webhook(url_file).send(a_message(detail={"node": "gpu-node-4"}))
    assert hook.paths == [f"/services/{SECRET}"]
    assert hook.bodies == [
        {
            "text": f"ada: {a_message().text}",
            "notice": {
                "notice_id": 7,
                "reservation_id": "r1",
                "user": "ada",
                "name": "vision-ft",
                "kind": "ends_in_30",
                "due_at": "2026-11-15T12:00:00+00:00",
                "detail": {"node": "gpu-node-4"},
            },
        }
    ]
    assert hook.keys == ["gpudev-7-r1"]


def test_a_name_neither_calls_a_channel_nor_becomes_a_link(hook: Hook, url_file: Path) -> None:
    Webhook(url_file).send(a_message(text="<!channel> & <http://evil|look>\n*** ended"))
    assert hook.bodies[0]["text"] == "ada: &lt;!channel&gt; &amp; &lt;http://evil|look&gt; *** ended"


@pytest.mark.parametrize(
    ("status", "headers", "said", "wait"),
    [
        pytest.param(500, {}, "the webhook answered 500", 0, id="broken"),
        pytest.param(404, {}, "the webhook answered 404", 0, id="gone"),
        pytest.param(429, {"Retry-After": "30"}, "the webhook answered 429", 30, id="too many"),
        pytest.param(429, {"Retry-After": "soon"}, "the webhook answered 429", 0, id="too many, oddly"),
    ],
)
def test_a_webhook_that_refuses(
    hook: Hook, url_file: Path, status: int, headers: dict[str, str], said: str, wait: float
) -> None:
    hook.status, hook.headers = status, headers
    with pytest.raises(SendFailed, match=said) as error:
        Webhook(url_file).send(a_message())
    assert error.value.retry_after_s == wait
    assert SECRET not in every_text_of(error.value)


def test_a_redirect_is_not_followed(hook: Hook, url_file: Path) -> None:
    hook.status, hook.headers = 307, {"Location": "/elsewhere"}
    with pytest.raises(SendFailed, match="answered 307, a redirect; these are not followed"):
        Webhook(url_file).send(a_message())
    assert hook.paths == [f"/services/{SECRET}"]


def test_a_webhook_that_hangs_is_left(hook: Hook, url_file: Path) -> None:
    hook.hangs = True
    before = time.monotonic()
    with pytest.raises(SendFailed, match="the webhook gave no answer: ReadTimeout") as error:
        Webhook(url_file, timeout_s=SHORT_S).send(a_message())
    assert time.monotonic() - before < LONG_S / 2
    assert SECRET not in every_text_of(error.value)


def test_a_webhook_that_is_not_there(tmp_path: Path, unused_port: int) -> None:
    path = tmp_path / "hook"
    path.write_text(f"http://127.0.0.1:{unused_port}/{SECRET}")
    with pytest.raises(SendFailed, match="the webhook gave no answer: ConnectError") as error:
        Webhook(path).send(a_message())
    assert SECRET not in every_text_of(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(f"ftp://{SECRET}/", "does not hold an http:// or https:// address", id="another kind"),
        pytest.param(SECRET, "does not hold an http:// or https:// address", id="no address"),
        pytest.param(f"http://a:{SECRET}", "does not hold an http:// or https:// address", id="a bad port"),
        pytest.param(f"http://a/\x00{SECRET}", "does not hold an http:// or https:// address", id="a zero"),
        pytest.param(" \n", "is empty", id="empty"),
        pytest.param(None, "cannot be read: No such file or directory", id="no file"),
    ],
)
def test_a_file_without_an_address_is_named_and_not_shown(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "hook"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SendFailed) as error:
        Webhook(path).send(a_message())
    assert str(error.value) == f"notify.webhook_url_file: {path} {said}"
    assert SECRET not in every_text_of(error.value)


def test_a_new_address_needs_no_restart(hook: Hook, tmp_path: Path) -> None:
    path = tmp_path / "hook"
    channel = Webhook(path)
    with pytest.raises(SendFailed):
        channel.send(a_message())
    path.write_text(hook.url)
    channel.send(a_message())
    assert len(hook.bodies) == 1


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# Mail ---------------------------------------------------------------------------------------------------


class Postbox:
    """What an SMTP server took. ``answers`` are given instead, by command."""

    def __init__(self) -> None:
        self.letters: list[tuple[str, list[str], Letter]] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.answers: dict[str, str] = {}

    async def handle_RCPT(
        self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any
    ) -> str:
        if "RCPT" in self.answers:
            return self.answers["RCPT"]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        if "DATA" in self.answers:
            return self.answers["DATA"]
        letter = email.message_from_bytes(envelope.content, policy=letters)
        self.letters.append((envelope.mail_from, envelope.rcpt_tos, letter))
        return "250 OK"

    async def handle_QUIT(self, server: Any, _session: Any, _envelope: Any) -> str:
        return self.answers.get("QUIT", "221 Bye")

    def check(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, login: Any) -> AuthResult:
        self.logins.append((login.login, login.password))
        return AuthResult(success=login.password == SECRET.encode(), handled=False)


class PlainSmtp(SmtpServer):
    """Listens on a port that is free."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextlib.contextmanager
def smtp(box: Postbox, **options: Any) -> Iterator[int]:
    server = PlainSmtp(box, hostname="127.0.0.1", port=0, **options)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """The file of an authority, and a server's side with a certificate of it for 127.0.0.1."""
    store = Certipy(store_dir=str(tmp_path_factory.mktemp("tls")))
    store.create_ca("authority")
    files = store.create_signed_pair("mail", "authority", alt_names=["IP:127.0.0.1"])["files"]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files["cert"], files["key"])
    return Path(files["ca"]), context


@pytest.fixture
def box() -> Postbox:
    return Postbox()


def settings_of_mail(port: int, **values: Any) -> Email:
    return Email(
        **{
            "host": "127.0.0.1",
            "port": port,
            "security": "none",
            "sender": "gpu@example.org",
            "address": "{user}@example.org",
            **values,
        }
    )


def test_a_letter_arrives(box: Postbox) -> None:
    with smtp(box) as port:
        Mail(settings_of_mail(port)).send(a_message())
    ((sender, to, letter),) = box.letters
    assert (sender, to) == ("gpu@example.org", ["ada@example.org"])
    assert letter["To"] == "ada@example.org"
    assert letter["Subject"] == "vision-ft: 30 minutes left"
    assert letter["Message-ID"] == "<gpudev-7-r1@example.org>"
    assert letter["Auto-Submitted"] == "auto-generated"
    assert letter.get_content().strip() == a_message().text


def test_a_second_copy_can_be_recognised(box: Postbox) -> None:
    with smtp(box) as port:
        for _ in range(2):
            Mail(settings_of_mail(port)).send(a_message())
        Mail(settings_of_mail(port)).send(a_message(notice_id=8))
    first, second, other = [letter["Message-ID"] for _, _, letter in box.letters]
    assert first == second != other


def test_a_name_in_any_script_arrives_and_adds_no_header(box: Postbox) -> None:
    name = "视觉\r\nBcc: root@example.org"
    with smtp(box) as port:
        Mail(settings_of_mail(port)).send(a_message(name=name, text="5 minutes left."))
    ((_, to, letter),) = box.letters
    assert to == ["ada@example.org"] and letter["Bcc"] is None
    assert letter["Subject"] == "视觉  Bcc: root@example.org: 5 minutes left"


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_it_logs_in_under_encryption(
    box: Postbox,
    tls: tuple[Path, ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    security: str,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[0]))
    (tmp_path / "password").write_text(f"{SECRET}\n")
    options = {"tls_context": tls[1]} if security == "starttls" else {"ssl_context": tls[1]}
    with encrypted(box, security, options) as port:
        Mail(settings_of_mail(port, security=security, user="me", password_file=tmp_path / "password")).send(
            a_message()
        )
    assert box.logins == [(b"me", SECRET.encode())]
    assert len(box.letters) == 1


@contextlib.contextmanager
def encrypted(box: Postbox, security: str, options: dict[str, Any]) -> Iterator[int]:
    # Under TLS from the first byte, aiosmtpd does not see that it is encrypted.
    needs = {"auth_require_tls": security == "starttls", "authenticator": box.check, "auth_required": True}
    with smtp(box, **options, **needs) as port:
        yield port


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_server_that_nobody_vouches_for_gets_no_letter(
    box: Postbox, tls: tuple[Path, ssl.SSLContext], security: str
) -> None:
    options = {"tls_context": tls[1]} if security == "starttls" else {"ssl_context": tls[1]}
    with smtp(box, **options) as port, pytest.raises(SendFailed, match="SSLCertVerificationError"):
        Mail(settings_of_mail(port, security=security)).send(a_message())
    assert box.letters == []


def test_a_server_without_encryption_gets_no_password(box: Postbox, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(SECRET)
    options = {"authenticator": box.check, "auth_require_tls": False}
    with smtp(box, **options) as port, pytest.raises(SendFailed, match="SMTPNotSupportedError"):
        Mail(
            settings_of_mail(port, security="starttls", user="me", password_file=tmp_path / "password")
        ).send(a_message())
    assert box.logins == [] and box.letters == []


@pytest.mark.parametrize(
    ("answers", "raised", "said"),
    [
        ({"RCPT": "550 no such user"}, Undeliverable, "answered 550 to the address of ada"),
        ({"RCPT": "451 later"}, SendFailed, "answered 451 to the address of ada"),
        ({"DATA": "554 spam"}, SendFailed, "answered 554 to the message"),
    ],
)
def test_a_mail_server_that_refuses(
    box: Postbox, answers: dict[str, str], raised: type[Exception], said: str
) -> None:
    box.answers = answers
    with smtp(box) as port, pytest.raises(raised, match=said):
        Mail(settings_of_mail(port)).send(a_message())


def test_a_bad_goodbye_does_not_make_a_second_letter(box: Postbox) -> None:
    box.answers = {"QUIT": "421 no"}
    with smtp(box) as port:
        Mail(settings_of_mail(port)).send(a_message())
    assert len(box.letters) == 1


def test_a_mail_server_that_says_nothing_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mail = Mail(settings_of_mail(silent.getsockname()[1]), timeout_s=SHORT_S)
        with pytest.raises(SendFailed, match="the mail server could not be used: SMTPServerDisconnected"):
            mail.send(a_message())


@pytest.mark.parametrize(
    ("template", "user", "address"),
    [
        ("{user}@example.org", "ada", "ada@example.org"),
        ("{user}@example.org", "ada.l-2_x", "ada.l-2_x@example.org"),
        ("gpu+{user}@example.org", "ada", "gpu+ada@example.org"),
        ("{user}", "ada@other.example", "ada@other.example"),
    ],
)
def test_a_user_name_makes_an_address(template: str, user: str, address: str) -> None:
    assert address_of(template, user) == address


@pytest.mark.parametrize("template", ["{user}@example.org", "{user}"])
@pytest.mark.parametrize(
    "user",
    [
        "",
        "ada\r\nBcc: root@example.org",
        "ada@evil.example\n",
        "ada,root@evil.example",
        "ada@evil.example,root@evil.example",
        "ada@evil.example>",
        "<ada@evil.example",
        "ada ",
        '"ada"',
        "ada@evil.example\x00",
        "ada..x",
        ".ada",
        "ada@evil.example@x",
        "{user}",
        "åda",
    ],
)
def test_a_user_name_never_makes_more_than_one_address(template: str, user: str) -> None:
    with pytest.raises(Undeliverable, match="makes no mail address of the user name"):
        address_of(template, user)


def test_a_whole_address_as_user_name_does_not_change_the_domain() -> None:
    with pytest.raises(Undeliverable):
        address_of("{user}@example.org", "ada@evil.example")


def test_no_header_can_be_added_even_past_the_check() -> None:
    with pytest.raises(ValueError):
        letter_of(a_message(), "gpu@example.org", "ada@example.org\r\nBcc: root@example.org")


# Terminals ----------------------------------------------------------------------------------------------


class Terminal:
    """A real terminal with a process that leads its session, as a shell does."""

    def __init__(self, environ: dict[str, str], command: tuple[str, ...] = ("sleep", "60")) -> None:
        self.master, self.slave = pty.openpty()
        tty.setraw(self.slave)
        os.set_blocking(self.master, False)
        self.process = subprocess.Popen(
            command,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={"PATH": os.environ["PATH"], **environ},
        )

    def shown(self) -> bytes:
        """All that was written so far."""
        found = b""
        while select.select([self.master], [], [], 0.05)[0]:
            found += os.read(self.master, 65536)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path / "sessions")


@pytest.fixture
def record(sessions: Sessions) -> SessionRecord:
    return sessions.begin("r1", "ada", "vision-ft")


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*args: Any) -> Terminal:
        opened.append(Terminal(*args))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def test_every_terminal_of_the_reservation_gets_the_line(
    sessions: Sessions, record: SessionRecord, terminal: Callable[..., Terminal]
) -> None:
    both = [terminal({MARKER: record.marker}) for _ in range(2)]
    Terminals(sessions).send(a_message(text="5 minutes left."))
    assert [one.shown() for one in both] == [b"\r\n\a*** 5 minutes left. ***\r\n"] * 2


def test_a_name_cannot_steer_the_terminal(
    sessions: Sessions, record: SessionRecord, terminal: Callable[..., Terminal]
) -> None:
    one = terminal({MARKER: record.marker})
    Terminals(sessions).send(a_message(text="\x1b[2Jvi\x9bsion\rft\u202e × 8"))
    assert one.shown() == "\r\n\a***  [2Jvi sion ft  × 8 ***\r\n".encode()


def test_terminals_of_others_get_nothing(
    sessions: Sessions, record: SessionRecord, terminal: Callable[..., Terminal]
) -> None:
    other = sessions.begin("r2", "ada", "other")
    mine, theirs, nobodys = (
        terminal({MARKER: record.marker}),
        terminal({MARKER: other.marker}),
        terminal({}),
    )
    Terminals(sessions).send(a_message())
    assert mine.shown() and not theirs.shown() and not nobodys.shown()


def test_a_program_of_the_reservation_in_somebody_elses_terminal_does_not_open_it(
    sessions: Sessions, record: SessionRecord, terminal: Callable[..., Terminal]
) -> None:
    carrier = f"env {MARKER}={record.marker} sleep 61 & echo started; wait"
    foreign = terminal({}, ("sh", "-c", carrier))
    assert b"started" in wait_for(foreign.shown)
    Terminals(sessions).send(a_message())
    assert foreign.shown() == b""


def test_a_program_without_a_terminal_is_no_terminal(
    sessions: Sessions, record: SessionRecord, tmp_path: Path
) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            ["sleep", "60"], stdin=out, stdout=out, start_new_session=True, env={MARKER: record.marker}
        )
    try:
        Terminals(sessions).send(a_message())
        assert (tmp_path / "out").read_bytes() == b""
    finally:
        process.kill()
        process.wait()


def test_a_stopped_terminal_is_not_waited_for(
    sessions: Sessions, record: SessionRecord, terminal: Callable[..., Terminal]
) -> None:
    stopped = terminal({MARKER: record.marker})
    termios.tcflow(stopped.slave, termios.TCOOFF)
    with pytest.raises(SendFailed, match="no open terminal took the message"):
        without_waiting(lambda: Terminals(sessions).send(a_message()))
    other = terminal({MARKER: record.marker})
    without_waiting(lambda: Terminals(sessions).send(a_message()))
    assert other.shown()
    termios.tcflow(stopped.slave, termios.TCOON)
    Terminals(sessions).send(a_message())
    assert stopped.shown().count(b"***") == 2


def test_a_terminal_that_nobody_reads_is_not_waited_for(
    sessions: Sessions, record: SessionRecord, terminal: Callable[..., Terminal]
) -> None:
    full = terminal({MARKER: record.marker})
    os.set_blocking(full.slave, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full.slave, b"x")
    with contextlib.suppress(SendFailed):  # the kernel may find room for one more line
        without_waiting(lambda: [Terminals(sessions).send(a_message(text="x" * 4000)) for _ in range(20)])


def test_who_has_no_terminal_open_misses_nothing(sessions: Sessions, record: SessionRecord) -> None:
    Terminals(sessions).send(a_message())
    Terminals(sessions).send(a_message(reservation_id="unknown"))


def without_waiting(call: Callable[[], Any]) -> None:
    """Raises what the call raises. One that hangs is left behind, so that the test ends."""
    outcome: list[Exception | None] = []

    def guarded() -> None:
        try:
            call()
            outcome.append(None)
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(LONG_S)
    assert outcome, "it waits"
    if outcome[0] is not None:
        raise outcome[0]


def wait_for(ready: Callable[[], Any]) -> Any:
    """What ``ready`` gives as soon as it gives something."""
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        if found := ready():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not happen")


# Postman ------------------------------------------------------------------------------------------------


class Kept:
    """A channel that takes everything."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


class Broken(Kept):
    """A channel that raises what it is told to; None: it works again."""

    def __init__(self, name: str, error: Exception | None) -> None:
        super().__init__(name)
        self.error = error
        self.tries = 0

    def send(self, message: Message) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        super().send(message)


class Hanging(Kept):
    """A channel that does not come back until it is let go."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.entered, self.let_go = threading.Event(), threading.Event()

    def send(self, message: Message) -> None:
        self.entered.set()
        self.let_go.wait(LONG_S)


class Desk:
    """A reservation that is active until one o'clock, a clock of ours, and whoever leads."""

    def __init__(self, store: Store) -> None:
        self.store, self.now, self.leads = store, START, True
        self.end = START + timedelta(hours=1)
        with store.write() as session:
            session.add(active_row("r1", self.end))

    def postman(self, *channels: Any) -> Postman:
        return Postman(self.store, channels, lambda: self.now, lambda: self.leads)

    def schedule(self, *channels: str) -> None:
        with self.store.write() as session:
            notices.schedule(session, session.get_one(ReservationRow, "r1"), channels, self.now)

    def tell(self, kind: str, *channels: str) -> None:
        with self.store.write() as session:
            notices.tell(session, session.get_one(ReservationRow, "r1"), kind, {}, channels, self.now)

    def change(self, **values: Any) -> None:
        with self.store.write() as session:
            for name, value in values.items():
                setattr(session.get_one(ReservationRow, "r1"), name, value)

    def deliveries(self, channel: str) -> list[DeliveryRow]:
        with self.store.read() as session:
            return list(
                session.scalars(query(DeliveryRow).filter_by(channel=channel).order_by(DeliveryRow.notice_id))
            )

    def statuses(self, channel: str) -> list[str]:
        return [delivery.status for delivery in self.deliveries(channel)]


def active_row(reservation_id: str, end: datetime) -> ReservationRow:
    request = Request("t4", 1, 1.0)
    return ReservationRow(
        reservation_id=reservation_id,
        user_id="ada",
        server_name=reservation_id,
        name="vision-ft",
        gpu_type="t4",
        gpu_count=1,
        duration_hours=1.0,
        request=request.as_json(),
        filed_from="test",
        status="active",
        created_at=end - timedelta(hours=1),
        preparing_at=end - timedelta(hours=1),
        launched_at=end - timedelta(hours=1),
        expires_at=end,
        placement=[{"node": "node-1", "units": [0]}],
    )


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


def test_warnings_are_sent_when_they_are_due_and_once(desk: Desk) -> None:
    channel = Kept("webhook")
    postman = desk.postman(channel)
    desk.schedule("webhook")
    for minutes, kinds in [(29, []), (30, ["ends_in_30"]), (31, ["ends_in_30"])]:
        desk.now = START + timedelta(minutes=minutes)
        postman.once()
        assert [message.kind for message in channel.sent] == kinds
    assert channel.sent[0].text.startswith("30 minutes left. vision-ft ends at 13:00 UTC.")
    assert desk.statuses("webhook") == ["delivered", "waiting", "waiting"]
    assert desk.deliveries("webhook")[0].delivered_at == START + timedelta(minutes=30)


def test_the_feed_is_delivered_by_being_due(desk: Desk) -> None:
    desk.schedule("feed")
    desk.now = desk.end - timedelta(minutes=30)
    desk.postman(Feed()).once()
    assert desk.statuses("feed") == ["delivered", "waiting", "waiting"]


@pytest.mark.parametrize(
    "error", [SendFailed("no"), Undeliverable("no"), RuntimeError("unforeseen"), MemoryError()], ids=repr
)
def test_one_broken_channel_beside_three_good_ones(desk: Desk, error: Exception) -> None:
    broken, *good = Broken("webhook", error), Kept("feed"), Kept("email"), Kept("terminal")
    desk.schedule("webhook", "feed", "email", "terminal")
    desk.now = desk.end - timedelta(minutes=30)
    desk.postman(broken, *good).once()
    assert broken.tries == 1 and [len(channel.sent) for channel in good] == [1, 1, 1]
    assert [desk.statuses(channel.name)[0] for channel in good] == ["delivered"] * 3


def test_a_channel_that_works_again_delivers_what_waited(desk: Desk) -> None:
    broken = Broken("webhook", SendFailed("no answer"))
    postman = desk.postman(broken)
    desk.tell("started", "webhook")
    for seconds in (0, 1, 5, 6, 15):
        desk.now = START + timedelta(seconds=seconds)
        postman.once()
    assert broken.tries == 3
    assert [(d.status, d.error) for d in desk.deliveries("webhook")] == [("waiting", "no answer")]
    broken.error, desk.now = None, START + timedelta(minutes=2)
    postman.once()
    assert len(broken.sent) == 1
    assert [(d.status, d.error) for d in desk.deliveries("webhook")] == [("delivered", None)]


def test_what_cannot_be_delivered_is_dropped_with_its_reason(desk: Desk) -> None:
    broken = Broken("email", Undeliverable("no address"))
    desk.tell("started", "email")
    postman = desk.postman(broken)
    postman.once()
    desk.now += timedelta(hours=1)
    postman.once()
    assert broken.tries == 1
    assert [(d.status, d.error) for d in desk.deliveries("email")] == [("dropped", "no address")]


@pytest.mark.parametrize(
    "change",
    [{"status": "cancelled"}, {"end_wanted": "expired"}, {"expires_at": START + timedelta(hours=3)}],
    ids=["ended", "ending", "longer"],
)
def test_a_warning_that_became_pointless_is_not_sent(desk: Desk, change: dict[str, Any]) -> None:
    channel = Kept("webhook")
    desk.schedule("webhook")
    desk.change(**change)
    desk.now = desk.end - timedelta(minutes=30)
    desk.postman(channel).once()
    assert channel.sent == [] and desk.statuses("webhook")[0] == "dropped"


def test_after_an_outage_only_the_latest_warning_is_sent(desk: Desk) -> None:
    channel = Kept("webhook")
    desk.schedule("webhook")
    desk.now = desk.end - timedelta(minutes=4)
    desk.postman(channel).once()
    assert [message.text.partition(".")[0] for message in channel.sent] == ["4 minutes left"]
    assert desk.statuses("webhook") == ["dropped", "dropped", "delivered"]


class Crash(BaseException):
    """The process is gone."""


def test_a_crash_between_sending_and_marking_sends_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Kept("webhook")
    desk.tell("started", "webhook")
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(notices, "delivered", crash)
        desk.postman(channel).once()
    assert len(channel.sent) == 1 and desk.statuses("webhook") == ["waiting"]
    desk.postman(channel).once()
    assert len({message.key for message in channel.sent}) == 1 and len(channel.sent) == 2
    assert desk.statuses("webhook") == ["delivered"]


def crash(*_: Any) -> None:
    raise Crash


def test_while_nothing_can_be_written_nobody_gets_the_same_thing_again_and_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Kept("webhook")
    postman = desk.postman(channel)
    desk.tell("started", "webhook")
    with monkeypatch.context() as patch:
        patch.setattr(notices, "delivered", lambda *_: 1 / 0)
        for _ in range(3):
            postman.once()
    assert len(channel.sent) == 1 and desk.statuses("webhook") == ["waiting"]
    postman.once()
    assert len(channel.sent) == 1 and desk.statuses("webhook") == ["delivered"]


def test_only_the_leader_sends(desk: Desk) -> None:
    channel = Kept("webhook")
    desk.tell("started", "webhook")
    desk.leads = False
    desk.postman(channel).once()
    assert channel.sent == [] and desk.statuses("webhook") == ["waiting"]
    desk.leads = True
    desk.postman(channel).once()
    assert len(channel.sent) == 1


def test_who_stops_leading_stops_at_the_next_message(desk: Desk) -> None:
    class Last(Kept):
        def send(self, message: Message) -> None:
            super().send(message)
            desk.leads = False

    channel = Last("webhook")
    desk.tell("started", "webhook")
    desk.tell("ended", "webhook")
    desk.postman(channel).once()
    assert len(channel.sent) == 1


def test_a_hanging_channel_delays_neither_the_others_nor_the_end(desk: Desk) -> None:
    hanging, good = Hanging("webhook"), Kept("feed")
    postman = desk.postman(hanging, good)
    postman.start()
    try:
        desk.tell("started", "webhook", "feed")
        postman.wake()
        assert hanging.entered.wait(LONG_S)
        desk.tell("ended", "feed")
        postman.wake()
        wait_for(lambda: desk.statuses("feed") == ["delivered", "delivered"])
        assert desk.statuses("webhook") == ["waiting"]
        before = time.monotonic()
        postman.close(SHORT_S)
        assert time.monotonic() - before < LONG_S / 2
    finally:
        hanging.let_go.set()
        postman.close(LONG_S)


def test_a_postman_that_was_never_started_can_be_closed(desk: Desk) -> None:
    desk.postman(Kept("feed")).close(SHORT_S)


def test_a_database_that_does_not_answer_ends_no_thread(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    channel = Kept("webhook")
    desk.tell("started", "webhook")
    postman = desk.postman(channel)
    with monkeypatch.context() as patch:
        patch.setattr(notices, "due", lambda *_: 1 / 0)
        postman.once()
    assert "webhook: a pass failed: ZeroDivisionError" in caplog.text
    postman.once()
    assert len(channel.sent) == 1


# Secrets ------------------------------------------------------------------------------------------------


def test_no_log_and_no_row_holds_the_address_of_the_webhook(
    desk: Desk, hook: Hook, url_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    postman = desk.postman(Webhook(url_file, timeout_s=SHORT_S))
    desk.tell("started", "webhook")
    for status, hangs in [(500, False), (302, False), (200, True), (200, False)]:
        hook.status, hook.hangs = status, hangs
        desk.now += timedelta(minutes=5)
        postman.once()
        assert SECRET not in str(desk.deliveries("webhook")[0].error)
    assert desk.statuses("webhook") == ["delivered"] and len(hook.bodies) == 4
    assert caplog.text.count("webhook: notice") == 3
    assert SECRET not in caplog.text


def test_no_log_and_no_row_holds_the_password_of_the_mail_server(
    desk: Desk,
    box: Postbox,
    tls: tuple[Path, ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.WARNING, "mail.log")  # the test's own server, which logs what it gets
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[0]))
    (tmp_path / "password").write_text(f"not-{SECRET}")
    desk.tell("started", "email")
    with encrypted(box, "starttls", {"tls_context": tls[1]}) as port:
        mail = Mail(
            settings_of_mail(port, security="starttls", user="me", password_file=tmp_path / "password")
        )
        desk.postman(mail).once()
    assert box.logins == [(b"me", f"not-{SECRET}".encode())] * len(box.logins) and box.logins
    assert desk.deliveries("email")[0].error == "the mail server answered 535 to the login"
    assert "email: notice" in caplog.text and SECRET not in caplog.text


def test_the_text_of_an_error_that_nobody_foresaw_is_not_repeated(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.tell("started", "webhook")
    desk.postman(Broken("webhook", RuntimeError(f"http://{SECRET}"))).once()
    assert "RuntimeError" in caplog.text and "in send" in caplog.text
    assert desk.deliveries("webhook")[0].error == "RuntimeError"
    assert SECRET not in caplog.text


# Together -----------------------------------------------------------------------------------------------


def test_the_settings_set_up_the_channels(tmp_path: Path) -> None:
    environ = {
        "GPUDEV_STATE": str(tmp_path),
        "GPUDEV_GPUS__SOURCE": "simulated",
        "GPUDEV_NOTIFY__WEBHOOK_URL_FILE": str(tmp_path / "hook"),
        "GPUDEV_NOTIFY__EMAIL": "{host: mail, sender: gpu@example.org, address: '{user}@example.org'}",
    }
    portal = open_portal(load(None, environ))
    found = channels(portal)
    assert {channel.name: type(channel) for channel in found} == {
        "feed": Feed,
        "terminal": Terminals,
        "webhook": Webhook,
        "email": Mail,
    }
    assert tuple(channel.name for channel in found) == notices.channels_of(portal.settings)
    portal.store.close()


def test_the_controller_carries_what_is_due(
    tmp_path: Path, hook: Hook, url_file: Path, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even while its hub does not answer; and by itself the postman would sleep for an hour."""
    monkeypatch.setattr(postman_module, "LOOK_AT_LEAST_EVERY_S", 3600.0)
    monkeypatch.setenv("JUPYTERHUB_API_URL", f"http://127.0.0.1:{unused_port}/hub/api")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token")
    environ = {
        "GPUDEV_STATE": str(tmp_path / "state"),
        "GPUDEV_GPUS__SOURCE": "simulated",
        "GPUDEV_NOTIFY__WEBHOOK_URL_FILE": str(url_file),
    }
    portal = open_portal(load(None, environ))

    def tell(kind: str) -> None:
        with portal.store.write() as session:
            row, now = session.get_one(ReservationRow, "r1"), datetime.now(UTC)
            notices.tell(session, row, kind, {}, notices.channels_of(portal.settings), now)

    with portal.store.write() as session:
        session.add(active_row("r1", datetime.now(UTC) + timedelta(hours=1)))
    ending = threading.Event()
    running = threading.Thread(target=controller.run, args=(portal, ending), daemon=True)
    running.start()
    try:
        for number, kind in enumerate(("started", "requeued"), start=1):
            tell(kind)
            wait_for(lambda number=number: len(hook.bodies) == number)
    finally:
        ending.set()
        running.join(LONG_S)
    assert [body["notice"]["kind"] for body in hook.bodies] == ["started", "requeued"]
    assert not running.is_alive()
    portal.store.close()
