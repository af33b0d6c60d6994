"""E-mail by SMTP: one letter to one person."""

from __future__ import annotations

import contextlib
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import format_datetime

from gpudev_core import notices
from gpudev_core.settings import MAIL_ADDRESS, Email
from gpudev_services.notify.channel import (
    TIMEOUT_S,
    Message,
    SendFailed,
    Undeliverable,
    one_line,
    secret_in,
)

PASSWORD_KEY = "notify.email.password_file"
SUBJECT_MAX = 150


class Mail:
    name = notices.EMAIL

    def __init__(self, email: Email, timeout_s: float = TIMEOUT_S) -> None:
        self._email = email
        self._timeout_s = timeout_s

    def send(self, message: Message) -> None:
        to = address_of(self._email.address, message.user)
        letter = letter_of(message, self._email.sender, to)
        try:
            self._hand_over(letter, to)
        except smtplib.SMTPRecipientsRefused as error:
            code = next(iter(error.recipients.values()))[0]
            kind = Undeliverable if code >= 500 else SendFailed
            raise kind(f"the mail server answered {code} to the address of {message.user}") from None
        except smtplib.SMTPResponseException as error:
            what = "the login" if isinstance(error, smtplib.SMTPAuthenticationError) else "the message"
            raise SendFailed(f"the mail server answered {error.smtp_code} to {what}") from None
        except (smtplib.SMTPException, OSError) as error:
            raise SendFailed(f"the mail server could not be used: {type(error).__name__}") from None

    def _hand_over(self, letter: EmailMessage, to: str) -> None:
        smtp = self._connect()
        try:
            if self._email.user and self._email.password_file:
                smtp.login(self._email.user, secret_in(self._email.password_file, PASSWORD_KEY))
            smtp.send_message(letter, self._email.sender, [to])
            with contextlib.suppress(smtplib.SMTPException, OSError):  # it has the letter by now
                smtp.quit()
        finally:
            smtp.close()

    def _connect(self) -> smtplib.SMTP:
        email = self._email
        if email.security == "tls":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(email.host, email.smtp_port, timeout=self._timeout_s, context=context)
        smtp = smtplib.SMTP(email.host, email.smtp_port, timeout=self._timeout_s)
        if email.security == "starttls":
            try:
                smtp.starttls(context=ssl.create_default_context())
            except BaseException:
                smtp.close()
                raise
        return smtp


def address_of(template: str, user: str) -> str:
    """A user name that would make anything but one plain address is refused: it may come from anywhere."""
    address = template.replace("{user}", user)
    if not MAIL_ADDRESS.fullmatch(address):
        raise Undeliverable(f"notify.email.address makes no mail address of the user name {user!r}")
    return address


def letter_of(message: Message, sender: str, to: str) -> EmailMessage:
    letter = EmailMessage()
    letter["From"] = sender
    letter["To"] = to
    letter["Subject"] = subject_of(message)
    letter["Date"] = format_datetime(message.at)
    letter["Message-ID"] = f"<{message.key}@{sender.partition('@')[2]}>"
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(one_line(message.text) + "\n")
    return letter


def subject_of(message: Message) -> str:
    """The first sentence, and the name if it is not in there."""
    first = one_line(message.text).partition(". ")[0].removesuffix(".")
    name = one_line(message.name)
    return (first if name in first else f"{name}: {first}")[:SUBJECT_MAX]
